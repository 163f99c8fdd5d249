//! `SystemRunner`: one process with a clean environment, watched by a `poll` loop.
//!
//! A single `poll` waits for output, the exit (through a pidfd), cancellation and the deadline; no
//! thread is started. If a process exits while a daemon it started still holds its output open, the
//! output is read for a short grace period and then closed; the daemon is not killed. Supervised
//! commands are started by a `supervisor`, so that a timeout also finds daemons.

use std::fmt;
use std::fs::File;
use std::io::{self, Seek as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::MemfdFlags;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::super::Cause;
use super::capture::{Capture, Lines};
use super::supervisor::{self, Exchange};
use super::{Command, Output, RunError, Runner, lookup, process_tree};

/// How long output is read after the process has exited.
const GRACE: Duration = Duration::from_secs(2);

/// Polling interval for the exit where pidfds are not available.
const TICK: Duration = Duration::from_millis(10);

/// Number of ticks to wait for a killed process: about 5 s.
const MAX_TICKS: usize = 500;

/// Number of attempts to start a program whose file is busy, one tick apart.
const MAX_STARTS: usize = 20;

/// Default capacity of a pipe, so that one read empties it.
const CHUNK: usize = 64 * 1024;

/// A cancellation token: stops running commands and refuses later ones. Clones share their state.
#[derive(Clone, Debug)]
pub struct Cancel(Arc<Token>);

#[derive(Debug)]
struct Token {
    is_cancelled: AtomicBool,
    /// Readable once cancelled; polled by the loop of a running command.
    wake: OwnedFd,
    /// Called by the first [`Cancel::prepare`].
    preparation: Mutex<Option<Preparation>>,
}

/// Makes a cancellation possible, such as a start of signal handlers.
struct Preparation(Box<dyn FnOnce(&Cancel) + Send>);

impl fmt::Debug for Preparation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Preparation")
    }
}

impl Cancel {
    /// Returns a token that is not cancelled.
    pub fn new() -> Result<Self, RunError> {
        Self::with(None)
    }

    /// Returns a token that calls a function before the first command or change that it may have to
    /// stop. A run that needs neither does without the preparation.
    pub fn prepared_by(prepare: impl FnOnce(&Self) + Send + 'static) -> Result<Self, RunError> {
        Self::with(Some(Preparation(Box::new(prepare))))
    }

    fn with(preparation: Option<Preparation>) -> Result<Self, RunError> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let wake = eventfd(0, flags).map_err(|errno| RunError::Token(errno.into()))?;
        Ok(Self(Arc::new(Token {
            is_cancelled: AtomicBool::new(false),
            wake,
            preparation: Mutex::new(preparation),
        })))
    }

    /// Says that a command or change begins. Only the first call has an effect.
    pub fn prepare(&self) {
        let preparation = self.0.preparation.lock().take();
        if let Some(Preparation(prepare)) = preparation {
            prepare(self);
        }
    }

    /// Cancels permanently.
    pub fn cancel(&self) {
        if !self.0.is_cancelled.swap(true, Ordering::SeqCst) {
            // The first and only write: it neither blocks nor overflows.
            let _ = rustix::io::write(&self.0.wake, &1_u64.to_ne_bytes());
        }
    }

    /// Whether the token was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.0.is_cancelled.load(Ordering::SeqCst)
    }
}

/// A runner that starts processes.
#[derive(Clone, Debug, Default)]
pub struct SystemRunner {
    cancel: Option<Cancel>,
    has_supervisor: bool,
    /// Supervisors of killed processes that did not end; set once they were waited for.
    orphans: Arc<OnceLock<Vec<i32>>>,
}

impl SystemRunner {
    /// Returns a runner whose commands cannot be cancelled.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns a runner whose commands are killed when the token is cancelled.
    pub fn cancellable(cancel: Cancel) -> Self {
        Self {
            cancel: Some(cancel),
            ..Self::default()
        }
    }

    /// Returns the runner with supervisors for the commands that want one. Only for programs that
    /// call [`supervise`](super::supervise) first.
    #[must_use]
    pub fn with_supervisor(self, has_supervisor: bool) -> Self {
        Self {
            has_supervisor,
            ..self
        }
    }

    /// Returns the supervisors of killed processes that did not end in time: their commands may
    /// have been running beside those of this runner.
    pub fn orphans(&self) -> &[i32] {
        self.orphans.get().map_or(&[], Vec::as_slice)
    }

    fn is_cancelled(&self) -> bool {
        self.cancel.as_ref().is_some_and(Cancel::is_cancelled)
    }
}

impl Runner for SystemRunner {
    fn run(&self, command: &Command<'_>) -> Result<Output, RunError> {
        if let Some(cancel) = self.cancel.as_ref().filter(|_| !command.is_query) {
            cancel.prepare();
        }
        if self.is_cancelled() {
            return Err(RunError::Cancelled {
                program: command.program.clone(),
                output: Box::default(),
            });
        }
        let is_supervised = command.supervised && self.has_supervisor && supervisor::is_available();
        if is_supervised {
            self.orphans.get_or_init(supervisor::wait_for_orphans);
        }
        let mut process = Process::start(command, is_supervised)?;
        let ended = self.watch(command, &mut process);
        if process.exit.is_none() {
            process.kill();
        }
        process.lines.finish();
        let (stdout, stdout_truncated) = process.stdout.capture.finish();
        let (stderr, stderr_truncated) = process.stderr.capture.finish();
        let mut output = Output {
            code: 0,
            stdout,
            stderr,
            stdout_truncated,
            stderr_truncated,
        };
        let ended = ended.and_then(|status| match &mut process.exchange {
            Some(exchange) => exchange.outcome(command),
            None => Ok(status),
        });
        let ended = ended.and_then(|status| exit_code(command, status));
        output.code = ended.map_err(|error| error.with_output(output.printed()))?;
        Ok(output)
    }

    fn locate(&self, program: &str) -> Option<PathBuf> {
        lookup::locate(program)
    }
}

impl SystemRunner {
    /// Waits for the exit and returns its status. After an error the process may still be running.
    fn watch(
        &self,
        command: &Command<'_>,
        process: &mut Process<'_>,
    ) -> Result<ExitStatus, RunError> {
        let failed = |error: io::Error| RunError::Watch {
            program: command.program.clone(),
            cause: error.into(),
        };
        let limit = command.timeout.filter(|limit| !limit.is_zero());
        // A limit that overflows the clock is no limit.
        let mut deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
        let mut buffer = [MaybeUninit::uninit(); CHUNK];
        loop {
            if let Some(status) = process.exit
                && process.is_output_closed()
            {
                return Ok(status);
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return process.exit.ok_or_else(|| RunError::TimedOut {
                    program: command.program.clone(),
                    after: limit.unwrap_or_default(),
                    output: Box::default(),
                });
            }
            if process.exit.is_none() && self.is_cancelled() {
                return Err(RunError::Cancelled {
                    program: command.program.clone(),
                    output: Box::default(),
                });
            }
            for event in self.wait(process, left).map_err(failed)? {
                match event {
                    Event::Cancel => {}
                    Event::Stderr => process.stderr.read(&mut buffer, |_| {}).map_err(failed)?,
                    Event::Stdout => {
                        let lines = &mut process.lines;
                        process
                            .stdout
                            .read(&mut buffer, |chunk| lines.push(chunk))
                            .map_err(failed)?;
                    }
                    Event::Exit => {
                        process.exit = process.child.try_wait().map_err(failed)?;
                        if process.exit.is_some() {
                            deadline = Instant::now().checked_add(GRACE);
                        }
                    }
                }
            }
        }
    }

    /// Waits for events, at most `left`.
    fn wait(&self, process: &Process<'_>, left: Option<Duration>) -> io::Result<Vec<Event>> {
        let is_running = process.exit.is_none();
        let polls_exit = is_running && process.handle.is_none();
        // Closed descriptors are left out: `poll` would return at once.
        let exit = process.handle.as_ref().filter(|_| is_running);
        let cancel = self.cancel.as_ref().filter(|_| is_running);
        let watched = [
            (Event::Stdout, process.stdout.pipe.as_ref()),
            (Event::Stderr, process.stderr.pipe.as_ref()),
            (Event::Exit, exit),
            (Event::Cancel, cancel.map(|cancel| &cancel.0.wake)),
        ];
        let mut events = Vec::with_capacity(watched.len());
        let mut fds = Vec::with_capacity(watched.len());
        for (event, fd) in watched {
            if let Some(fd) = fd {
                events.push(event);
                fds.push(PollFd::new(fd, PollFlags::IN));
            }
        }
        let left = match left {
            _ if polls_exit => Some(left.map_or(TICK, |left| left.min(TICK))),
            left => left,
        };
        // A wait too long for the kernel is no limit.
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut fds, left.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        let mut ready = fds.iter().map(|fd| !fd.revents().is_empty());
        events.retain(|_| ready.next().unwrap_or_default());
        if polls_exit {
            events.push(Event::Exit);
        }
        Ok(events)
    }
}

/// Returns the exit code of a process; one that was killed by a signal has none.
fn exit_code(command: &Command<'_>, status: ExitStatus) -> Result<i32, RunError> {
    status.code().ok_or_else(|| RunError::Signal {
        program: command.program.clone(),
        signal: status.signal().unwrap_or_default(),
        core_dumped: status.core_dumped(),
        output: Box::default(),
    })
}

/// An event of a watched process.
enum Event {
    Stdout,
    Stderr,
    Exit,
    Cancel,
}

/// A process that was started.
struct Process<'a> {
    /// The command, or its supervisor.
    child: Child,
    /// The exchange with the supervisor.
    exchange: Option<Exchange>,
    /// A pidfd, readable once the process has exited. Missing before Linux 5.3 and in sandboxes.
    handle: Option<OwnedFd>,
    exit: Option<ExitStatus>,
    stdout: Stream,
    stderr: Stream,
    lines: Lines<'a>,
}

impl<'a> Process<'a> {
    fn start(command: &Command<'a>, is_supervised: bool) -> Result<Self, RunError> {
        let (exchange, mut prepared) = match is_supervised {
            true => {
                let (exchange, prepared) = Exchange::prepare(command)?;
                (Some(exchange), prepared)
            }
            false => (None, prepare(command)?),
        };
        pass_input(command, &mut prepared)?;
        prepared.process_group(0).stderr(Stdio::piped());
        let mut child = spawn(command, &mut prepared)?;
        let handle = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).ok();
        Ok(Self {
            exchange,
            handle,
            exit: None,
            stdout: Stream::new(child.stdout.take().map(Into::into), command),
            stderr: Stream::new(child.stderr.take().map(Into::into), command),
            lines: Lines::new(command.on_line),
            child,
        })
    }

    /// Whether both streams have ended.
    fn is_output_closed(&self) -> bool {
        self.stdout.pipe.is_none() && self.stderr.pipe.is_none()
    }

    /// Kills the process and its descendants, and reaps it.
    fn kill(&mut self) {
        let pipes = [&self.stdout, &self.stderr].map(|stream| stream.pipe.as_ref());
        let output: Vec<u64> = pipes
            .into_iter()
            .flatten()
            .filter_map(|pipe| Some(rustix::fs::fstat(pipe).ok()?.st_ino))
            .collect();
        process_tree::kill(Pid::from_child(&self.child), &output);
        for _ in 0..MAX_TICKS {
            // A process stuck in the kernel may never exit; leave a zombie rather than hang.
            match self.child.try_wait() {
                Ok(None) => std::thread::sleep(TICK),
                Ok(Some(_)) | Err(_) => break,
            }
        }
    }
}

/// Returns a process builder with a clean environment and piped standard output.
#[expect(
    clippy::disallowed_methods,
    reason = "this is where processes are started"
)]
pub(super) fn prepare(command: &Command<'_>) -> Result<std::process::Command, RunError> {
    let mut prepared = std::process::Command::new(program_file(command)?);
    prepared
        .arg0(&command.program)
        .args(&command.args)
        .env_clear()
        .envs(environment(command))
        .current_dir(cwd(command))
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    Ok(prepared)
}

/// Returns the file of the program.
pub(super) fn program_file(command: &Command<'_>) -> Result<PathBuf, RunError> {
    match command.program.as_str() {
        "" => Err(RunError::NotSpecified),
        path if path.contains('/') => Ok(PathBuf::from(path)),
        name => lookup::program_of(command).ok_or_else(|| RunError::NotFound(name.to_owned())),
    }
}

/// Returns the environment; the last of equal names wins.
pub(super) fn environment(command: &Command<'_>) -> Vec<(String, String)> {
    let text = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let mut variables = vec![text("LANG", "C"), text("LC_ALL", "C")];
    variables.extend_from_slice(&command.env);
    variables.push(text("PATH", command.search_path()));
    variables
}

/// Sets the standard input, if the command has one.
pub(super) fn pass_input(
    command: &Command<'_>,
    prepared: &mut std::process::Command,
) -> Result<(), RunError> {
    if !command.input.is_empty() {
        let input = input_file(&command.input).map_err(|error| RunError::Watch {
            program: command.program.clone(),
            cause: error.into(),
        })?;
        prepared.stdin(input);
    }
    Ok(())
}

/// Returns the working directory.
pub(super) fn cwd<'c>(command: &'c Command<'_>) -> &'c Path {
    command.cwd.as_deref().unwrap_or(Path::new("/"))
}

/// Returns a memory file with the standard input of a process. Unlike a pipe it takes everything at
/// once and needs no writer while the process runs.
fn input_file(input: &[u8]) -> io::Result<File> {
    let file = rustix::fs::memfd_create("input", MemfdFlags::CLOEXEC)?;
    let mut file = File::from(file);
    file.write_all(input)?;
    file.rewind()?;
    Ok(file)
}

/// Starts the process.
pub(super) fn spawn(
    command: &Command<'_>,
    prepared: &mut std::process::Command,
) -> Result<Child, RunError> {
    start(prepared).map_err(|error| start_error(command, cwd(command), error.into()))
}

/// Starts the process. A program that was just written may be busy (`ETXTBSY`): a process that
/// another thread forked meanwhile has a copy of the writable descriptor until its exec.
pub(super) fn start(prepared: &mut std::process::Command) -> io::Result<Child> {
    let mut started = prepared.spawn();
    for _ in 0..MAX_STARTS {
        match &started {
            Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy => {
                std::thread::sleep(TICK);
                started = prepared.spawn();
            }
            _ => break,
        }
    }
    started
}

/// Returns the error of a failed start. The system's error does not distinguish a missing program
/// from a missing working directory.
pub(super) fn start_error(command: &Command<'_>, cwd: &Path, cause: Cause) -> RunError {
    use rustix::fs::{Access, AtFlags, CWD, accessat};
    let entered = rustix::fs::stat(cwd.join("."))
        .and_then(|_| accessat(CWD, cwd, Access::EXEC_OK, AtFlags::EACCESS));
    match entered {
        Ok(()) => RunError::Start {
            program: command.program.clone(),
            cause,
        },
        Err(errno) => RunError::Directory {
            cwd: cwd.to_owned(),
            cause: errno.into(),
        },
    }
}

/// The read end of a pipe and its captured output.
struct Stream {
    /// `None` once the other end is closed.
    pipe: Option<OwnedFd>,
    capture: Capture,
}

impl Stream {
    fn new(pipe: Option<OwnedFd>, command: &Command<'_>) -> Self {
        let capture = match command.keeps_end {
            true => Capture::of_end(command.max_output),
            false => Capture::new(command.max_output),
        };
        Self { pipe, capture }
    }

    /// Reads once and passes the bytes to `on_chunk`.
    fn read(
        &mut self,
        buffer: &mut [MaybeUninit<u8>],
        mut on_chunk: impl FnMut(&[u8]),
    ) -> io::Result<()> {
        let Some(pipe) = &self.pipe else {
            return Ok(());
        };
        match rustix::io::read(pipe, buffer) {
            Ok(([], _)) => self.pipe = None,
            Ok((chunk, _)) => {
                self.capture.push(chunk);
                on_chunk(chunk);
            }
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(errno) => return Err(errno.into()),
        }
        Ok(())
    }
}
