//! Arguments of a command that are defined only when the command is used. Defining the whole command
//! line takes longer than the rest of a start.

use std::cell::Cell;

use clap::{ArgMatches, Args, Command, Error, FromArgMatches};

thread_local! {
    /// Whether arguments are defined at once; see [`define_all`].
    static DEFINE_ALL: Cell<bool> = const { Cell::new(false) };
}

/// Returns a command line definition with the arguments of all commands, for help, manual pages and
/// completion.
pub(super) fn define_all(command: impl FnOnce() -> Command) -> Command {
    DEFINE_ALL.set(true);
    let command = command();
    DEFINE_ALL.set(false);
    command
}

/// Arguments whose definition is deferred. The description of the command is on the variant, because
/// the list of commands shows it without their arguments.
#[derive(Debug)]
pub(super) struct Deferred<T>(pub(super) T);

impl<T: Args> Args for Deferred<T> {
    fn augment_args(command: Command) -> Command {
        match DEFINE_ALL.get() {
            true => T::augment_args(command),
            false => command.defer(T::augment_args),
        }
    }

    fn augment_args_for_update(command: Command) -> Command {
        T::augment_args_for_update(command)
    }
}

impl<T: FromArgMatches> FromArgMatches for Deferred<T> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        T::from_arg_matches(matches).map(Self)
    }

    fn from_arg_matches_mut(matches: &mut ArgMatches) -> Result<Self, Error> {
        T::from_arg_matches_mut(matches).map(Self)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        self.0.update_from_arg_matches(matches)
    }
}

/// Arguments that a command may have inherited from its parent: those of the parent are replaced.
/// clap adds global arguments to a command before deferred ones are defined.
#[derive(Clone, Debug, Default)]
pub(super) struct Inherited<T>(pub(super) T);

impl<T: Args> Args for Inherited<T> {
    fn augment_args(command: Command) -> Command {
        replace_args(command, &T::augment_args(Command::new("arguments")))
    }

    fn augment_args_for_update(command: Command) -> Command {
        replace_args(
            command,
            &T::augment_args_for_update(Command::new("arguments")),
        )
    }
}

/// Adds the arguments of a definition to a command, in place of those with the same ids.
fn replace_args(command: Command, definition: &Command) -> Command {
    definition.get_arguments().fold(command, |command, arg| {
        let is_inherited = command
            .get_arguments()
            .any(|it| it.get_id() == arg.get_id());
        match is_inherited {
            true => command.mut_arg(arg.get_id(), |_| arg.clone()),
            false => command.arg(arg),
        }
    })
}

impl<T: FromArgMatches> FromArgMatches for Inherited<T> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        T::from_arg_matches(matches).map(Self)
    }

    fn from_arg_matches_mut(matches: &mut ArgMatches) -> Result<Self, Error> {
        T::from_arg_matches_mut(matches).map(Self)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        self.0.update_from_arg_matches(matches)
    }
}
