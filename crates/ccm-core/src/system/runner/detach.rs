//! A process that outlives us: started clean, heard once, then let go.
//!
//! It shares nothing with us but its standard output, on which we hear its first words. Nobody who
//! started us waits for it: our own output and error are not passed on. It belongs to our session
//! until it calls [`lead_session`] itself; between fork and exec nothing safe could do that for it.
//! What the words mean is not known here.

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::super::Cause;
use super::process::{prepare, spawn};
use super::{Command, RunError};

/// Read at once.
const CHUNK: usize = 4096;

/// A process that was let go.
#[derive(Debug)]
pub struct Detached {
    child: Child,
    program: String,
    output: Option<OwnedFd>,
}

/// Starts a process that nobody waits for. The command's timeout, the limit on its output and who
/// hears its lines don't apply.
pub fn detach(command: &Command<'_>) -> Result<Detached, RunError> {
    let mut prepared = prepare(command)?;
    prepared.stderr(Stdio::null());
    let mut child = spawn(command, &mut prepared)?;
    Ok(Detached {
        output: child.stdout.take().map(Into::into),
        program: command.program.clone(),
        child,
    })
}

/// Makes this process the leader of a session and a group of its own, without a terminal: who
/// signals the group or the session it was started in no longer means it.
pub fn lead_session() -> Result<(), Cause> {
    Ok(rustix::process::setsid().map(drop)?)
}

impl Detached {
    /// Returns the process's number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the first line that the process prints, of at most `limit` bytes; what there is of
    /// it if the process closes its output or stays silent for too long.
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
    fn the_first_line_is_heard_while_the_process_goes_on() {
        let process = shell("echo begun; echo more; exec sleep 60");
        let pid = rustix::process::Pid::from_raw(i32::try_from(process.id()).unwrap()).unwrap();
        assert_eq!(process.first_line(100, PATIENCE).unwrap(), b"begun");
        assert!(rustix::process::test_kill_process(pid).is_ok());
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    }

    #[test]
    fn a_process_that_says_nothing_is_not_waited_for() {
        assert_eq!(shell("exit 3").first_line(100, PATIENCE).unwrap(), b"");
        let silent = shell("exec sleep 60");
        let pid = rustix::process::Pid::from_raw(i32::try_from(silent.id()).unwrap()).unwrap();
        let heard = silent.first_line(100, Duration::from_millis(1)).unwrap();
        assert_eq!(heard, b"");
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    }

    #[test]
    fn no_more_is_kept_than_allowed() {
        let heard = shell("printf 'abcdefgh\\n'")
            .first_line(3, PATIENCE)
            .unwrap();
        assert_eq!(heard, b"abc");
    }

    #[test]
    fn what_it_is_to_read_comes_with_it() {
        let command = Command {
            input: b"an order\n".to_vec(),
            ..Command::new("cat", [""; 0])
        };
        let heard = detach(&command).unwrap().first_line(100, PATIENCE).unwrap();
        assert_eq!(heard, b"an order");
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let error = detach(&Command::new("/no/such", [""; 0])).unwrap_err();
        assert!(error.to_string().contains("/no/such"), "{error}");
    }
}
