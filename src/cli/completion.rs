//! What a shell offers when somebody presses Tab.
//!
//! A script asks `ccm --completion-bash WORDS…`, where the last word is the one being typed, and
//! chooses among the lines that come back, as upstream's does. All that is known here is the
//! definition of the command line, so nothing has to be kept in step with it.

use std::ffi::OsString;

use clap::{Arg, Command};

/// For bash: `source <(ccm --completion-script-bash)`.
pub(super) const BASH: &str = r#"_ccm_bash_autocomplete() {
    local IFS=$'\n'
    local typed=${COMP_WORDS[COMP_CWORD]}
    local offers
    offers=$("${COMP_WORDS[0]}" --completion-bash "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
    COMPREPLY=($(compgen -W "$offers" -- "$typed"))
}
complete -o default -F _ccm_bash_autocomplete ccm
"#;

/// For zsh: `source <(ccm --completion-script-zsh)`, or as `_ccm` in a directory of `fpath`.
pub(super) const ZSH: &str = r#"#compdef ccm
_ccm() {
    local -a offers
    offers=(${(f)"$("${words[1]}" --completion-bash "${(@)words[2,CURRENT]}" 2>/dev/null)"})
    if (( ${#offers} )); then
        compadd -a offers
    else
        _files
    fi
}
if [[ ${funcstack[1]} == _ccm ]]; then
    _ccm "$@"
else
    compdef _ccm ccm
fi
"#;

/// Returns what may stand where the last of these words is being typed.
pub(super) fn offers(mut root: Command, words: &[OsString]) -> Vec<String> {
    root.build();
    let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
    let (typed, before) = match words.split_last() {
        Some((typed, before)) => (&**typed, before),
        None => ("", Default::default()),
    };
    let mut place = Place::new(&root);
    for word in before {
        place.pass(word);
    }
    // A command that is whole is done, as upstream sees it.
    if place.subcommand(typed).is_some() {
        place.pass(typed);
        return place.offers("");
    }
    place.offers(typed)
}

/// Where in a command line somebody is.
struct Place<'a> {
    command: &'a Command,
    /// The flag whose value comes next.
    flag: Option<&'a Arg>,
    /// How many arguments of the command stand before.
    arguments: usize,
    has_flags: bool,
}

impl<'a> Place<'a> {
    fn new(command: &'a Command) -> Self {
        Self {
            command,
            flag: None,
            arguments: 0,
            has_flags: true,
        }
    }

    /// Goes past a word.
    fn pass(&mut self, word: &str) {
        // Bash takes `--flag=value` apart.
        if word == "=" || self.flag.take().is_some() {
            return;
        }
        if let Some(command) = self.subcommand(word) {
            *self = Self::new(command);
        } else if !self.has_flags || !word.starts_with('-') {
            self.arguments += 1;
        } else if word == "--" {
            self.has_flags = false;
        } else {
            self.flag = self.flag_named(word);
        }
    }

    fn subcommand(&self, word: &str) -> Option<&'a Command> {
        let is_free = self.has_flags && self.flag.is_none() && self.arguments == 0;
        self.command.find_subcommand(word).filter(|_| is_free)
    }

    /// Returns the flag of this name that takes the next word.
    fn flag_named(&self, word: &str) -> Option<&'a Arg> {
        let is_meant = |arg: &&Arg| match word.strip_prefix("--") {
            Some(long) => arg
                .get_long_and_visible_aliases()
                .is_some_and(|names| names.contains(&long)),
            None => {
                let mut short = word.chars().skip(1);
                short.next() == arg.get_short() && short.next().is_none()
            }
        };
        let mut flags = self.command.get_opts();
        flags.find(is_meant)
    }

    fn offers(&self, typed: &str) -> Vec<String> {
        if let Some(flag) = self.flag {
            return values(flag);
        }
        if self.has_flags && typed.starts_with('-') {
            let flags = self.command.get_arguments();
            return flags
                .filter(|arg| !arg.is_hide_set())
                .filter_map(|arg| Some(format!("--{}", arg.get_long()?)))
                .collect();
        }
        let commands: Vec<String> = self
            .command
            .get_subcommands()
            .filter(|command| self.arguments == 0 && !command.is_hide_set())
            .map(|command| command.get_name().to_owned())
            .collect();
        match self.command.get_positionals().nth(self.arguments) {
            Some(argument) if commands.is_empty() => values(argument),
            _ => commands,
        }
    }
}

fn values(arg: &Arg) -> Vec<String> {
    arg.get_possible_values()
        .iter()
        .filter(|value| !value.is_hide_set())
        .map(|value| value.get_name().to_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    fn offered(words: &[&str]) -> Vec<String> {
        let words: Vec<OsString> = words.iter().map(OsString::from).collect();
        offers(super::super::Cli::command(), &words)
    }

    #[test]
    fn commands_are_offered_where_one_may_stand() {
        for words in [&[][..], &[""], &["ens"], &["--debug", ""]] {
            let found = offered(words);
            assert!(found.contains(&"ensure".to_owned()), "{words:?}: {found:?}");
        }
        for words in [&["ensure"][..], &["ensure", ""], &["ensure", "--noop", ""]] {
            let found = offered(words);
            assert!(found.contains(&"file".to_owned()), "{words:?}: {found:?}");
        }
        assert!(offered(&["reg", ""]).contains(&"query".to_owned()));
    }

    #[test]
    fn flags_are_those_of_the_command_and_those_around_it() {
        let found = offered(&["ensure", "file", "/x", "--"]);
        for flag in ["--mode", "--noop", "--debug", "--check-tries", "--help"] {
            assert!(found.contains(&flag.to_owned()), "{flag}: {found:?}");
        }
        assert!(
            !found.contains(&"--cfengine-module".to_owned()),
            "{found:?}"
        );
    }

    #[test]
    fn a_flag_offers_its_values_and_a_free_text_offers_none() {
        let engines = ["go", "jet", "jinja"];
        assert_eq!(offered(&["ensure", "scaffold", "--engine", ""]), engines);
        assert_eq!(
            offered(&["ensure", "scaffold", "--engine", "=", "j"]),
            engines
        );
        assert_eq!(offered(&["ensure", "file", "--mode", "e"]), [""; 0]);
        assert_eq!(offered(&["ensure", "file", "ens"]), [""; 0]);
        assert_eq!(
            offered(&["util", "vercmp", ""]),
            ["debian", "rpm", "generic"]
        );
    }
}
