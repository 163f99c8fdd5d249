//! Background processes that outlive this one.
//!
//! A detached process inherits neither output nor error of this one; its standard output is a pipe
//! from which one line is read. It stays in this session until it calls [`lead_session`] itself,
//! because nothing can be run safely between fork and exec.

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::super::Cause;
use super::process::{pass_input, prepare, spawn};
use super::{Command, RunError};

/// Size of one read.
const CHUNK: usize = 4096;

/// A background process.
#[derive(Debug)]
pub struct Detached {
    child: Child,
    program: String,
    output: Option<OwnedFd>,
}

/// Starts a background process. `timeout`, `max_output` and `on_line` of the command are ignored.
pub fn detach(command: &Command<'_>) -> Result<Detached, RunError> {
    let mut prepared = prepare(command)?;
    pass_input(command, &mut prepared)?;
    prepared.stderr(Stdio::null());
    let mut child = spawn(command, &mut prepared)?;
    Ok(Detached {
        output: child.stdout.take().map(Into::into),
        program: command.program.clone(),
        child,
    })
}

/// Makes this process the leader of a new session and process group without a terminal, so that
/// signals to its former session and group do not reach it.
pub fn lead_session() -> Result<(), Cause> {
    Ok(rustix::process::setsid().map(drop)?)
}

impl Detached {
    /// Returns the process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the first line of output, of at most `limit` bytes, or the part received before the
    /// process closes its output or `patience` has passed.
    pub fn first_line(mut self, limit: usize, patience: Duration) -> Result<Vec<u8>, RunError> {
        let failed = |errno: Errno| RunError::Watch {
            program: self.program.clone(),
            cause: errno.into(),
        };
        let start = Instant::now();
        let mut line = Vec::new();
        let mut buffer = [MaybeUninit::uninit(); CHUNK];
        let output = self.output.take();
        while let Some(output) = &output {
            let left = patience.saturating_sub(start.elapsed());
            let wait = Timespec::try_from(left).ok();
            match poll(&mut [PollFd::new(output, PollFlags::IN)], wait.as_ref()) {
                Ok(0) => break,
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(failed(errno)),
            }
            match rustix::io::read(output, &mut buffer) {
                Ok(([], _)) => break,
                Ok((chunk, _)) => line.extend_from_slice(chunk),
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(errno) => return Err(failed(errno)),
            }
            if line.len() > limit || line.contains(&b'\n') {
                break;
            }
        }
        let end = line.iter().position(|byte| *byte == b'\n');
        line.truncate(end.unwrap_or(line.len()).min(limit));
        Ok(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Detached {
        detach(&Command::new("sh", ["-c", script])).unwrap()
    }

    const PATIENCE: Duration = Duration::from_secs(60);

    #[test]
    fn the_first_line_is_read_while_the_process_runs() {
        let process = shell("echo begun; echo more; exec sleep 60");
        let pid = rustix::process::Pid::from_raw(i32::try_from(process.id()).unwrap()).unwrap();
        assert_eq!(process.first_line(100, PATIENCE).unwrap(), b"begun");
        assert!(rustix::process::test_kill_process(pid).is_ok());
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    }

    #[test]
    fn a_silent_process_is_not_waited_for() {
        assert_eq!(shell("exit 3").first_line(100, PATIENCE).unwrap(), b"");
        let silent = shell("exec sleep 60");
        let pid = rustix::process::Pid::from_raw(i32::try_from(silent.id()).unwrap()).unwrap();
        let line = silent.first_line(100, Duration::from_millis(1)).unwrap();
        assert_eq!(line, b"");
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    }

    #[test]
    fn no_more_is_kept_than_allowed() {
        let line = shell("printf 'abcdefgh\\n'")
            .first_line(3, PATIENCE)
            .unwrap();
        assert_eq!(line, b"abc");
    }

    #[test]
    fn standard_input_is_passed() {
        let command = Command {
            input: b"an order\n".to_vec(),
            ..Command::new("cat", [""; 0])
        };
        let line = detach(&command).unwrap().first_line(100, PATIENCE).unwrap();
        assert_eq!(line, b"an order");
    }

    #[test]
    fn a_missing_program_is_named() {
        let error = detach(&Command::new("/no/such", [""; 0])).unwrap_err();
        assert!(error.to_string().contains("/no/such"), "{error}");
    }
}
