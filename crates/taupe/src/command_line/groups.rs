//! Commands by subject, for `taupe --help`, taupe(1) and the reference.

use clap::Command;
use std::fmt::Write as _;

/// Commands of one subject.
#[derive(Clone, Copy, Debug)]
pub struct CommandGroup {
    /// The subject.
    pub title: &'static str,
    /// Names of commands, in the order in which help lists them. A command that this system does
    /// not have is skipped.
    pub commands: &'static [&'static str],
}

/// All groups, in the order in which help lists them.
pub const COMMAND_GROUPS: &[CommandGroup] = &[
    CommandGroup {
        title: "Tunnels",
        commands: &["up", "down", "reload", "save", "status", "run", "service"],
    },
    CommandGroup {
        title: "Applications",
        commands: &["app", "lock", "flows", "explain", "prove"],
    },
    CommandGroup {
        title: "One command, or a proxy",
        commands: &["exec", "proxy"],
    },
    CommandGroup {
        title: "Files",
        commands: &["check", "strip", "allowed-ips"],
    },
    CommandGroup {
        title: "Interfaces and keys, as with wg",
        commands: &[
            "show", "showconf", "set", "setconf", "addconf", "syncconf", "genkey", "genpsk",
            "pubkey", "device",
        ],
    },
    CommandGroup {
        title: "This machine",
        commands: &["top", "web", "events", "metrics", "doctor", "report"],
    },
];

/// Has help list the commands by group, each with its own summary.
pub(crate) fn grouped(command: Command) -> Command {
    let styles = command.get_styles().clone();
    let (header, literal) = (styles.get_header(), styles.get_literal());
    let mut template =
        String::from("{before-help}{about-with-newline}\n{usage-heading} {usage}\n\n");
    // Writing to a string does not fail.
    for group in COMMAND_GROUPS {
        let commands: Vec<_> = members(&command, group).collect();
        if commands.is_empty() {
            continue;
        }
        let _ = writeln!(template, "{header}{}:{header:#}", group.title);
        for one in commands {
            let (name, about) = (one.get_name(), one.get_about().unwrap_or_default());
            let _ = writeln!(template, "  {literal}{name:WIDTH$}{literal:#}  {about}");
        }
        template.push('\n');
    }
    let _ = write!(
        template,
        "`taupe help COMMAND` describes a command.\n\n{header}Options:{header:#}\n\
         {{options}}{{after-help}}"
    );
    command.help_template(template)
}

/// The length of the longest name, `allowed-ips`.
const WIDTH: usize = 11;

fn members<'a>(command: &'a Command, group: &CommandGroup) -> impl Iterator<Item = &'a Command> {
    let names = group.commands.iter();
    names.filter_map(|name| command.find_subcommand(name))
}

#[cfg(test)]
mod tests {
    use super::{COMMAND_GROUPS, WIDTH};
    use clap::{Arg, Command};

    /// The definition for a terminal of 80 columns, with all that clap adds.
    fn built() -> Command {
        let mut command = crate::command_line().term_width(80);
        command.build();
        command
    }

    fn walk(command: &Command, visit: &mut dyn FnMut(&Command)) {
        visit(command);
        for one in command.get_subcommands() {
            walk(one, visit);
        }
    }

    fn helps(command: &Command) -> [String; 2] {
        let mut command = command.clone();
        [command.render_help(), command.render_long_help()].map(|text| text.to_string())
    }

    #[test]
    fn every_command_is_in_one_group() {
        let grouped = || COMMAND_GROUPS.iter().flat_map(|group| group.commands);
        for command in built().get_subcommands() {
            let name = command.get_name();
            let count = grouped().filter(|one| **one == name).count();
            assert_eq!(count, usize::from(name != "help"), "{name}");
            assert!(name.len() <= WIDTH, "{name}");
        }
    }

    #[test]
    fn no_line_of_help_is_longer_than_80_columns() {
        let mut count = 0;
        walk(&built(), &mut |command| {
            for line in helps(command).iter().flat_map(|text| text.lines()) {
                count += 1;
                let name = command.get_bin_name().unwrap_or_default();
                assert!(line.chars().count() <= 80, "{name}: {line}");
            }
            // clap would cut an indented line in two.
            let after = command.get_after_long_help();
            let after = after.or_else(|| command.get_after_help());
            let after = after.map(ToString::to_string).unwrap_or_default();
            for line in after.lines().filter(|line| line.starts_with("  ")) {
                assert!(line.chars().count() <= 80, "{line}");
            }
        });
        assert!(count > 500, "{count}");
    }

    #[test]
    fn a_summary_is_one_sentence_of_at_most_60_characters() {
        walk(&built(), &mut |command| {
            let about = command.get_about().unwrap_or_default().to_string();
            let name = command.get_bin_name().unwrap_or_default();
            assert!((1..=60).contains(&about.chars().count()), "{name}: {about}");
            assert!(!about.contains(['\n', ':']), "{name}: {about}");
            assert!(!about.ends_with('.'), "{name}: {about}");
        });
    }

    #[test]
    fn short_help_has_one_line_per_option() {
        walk(&built(), &mut |command| {
            let [help, _] = helps(command);
            let lines = help.lines().skip_while(|line| *line != "Options:").skip(1);
            let lines = lines.take_while(|line| !line.is_empty()).count();
            let is_shown = |one: &&Arg| {
                !one.is_positional() && !one.is_hide_set() && one.get_help_heading().is_none()
            };
            let options = command.get_arguments().filter(is_shown).count();
            assert_eq!(lines, options, "{help}");
        });
    }

    #[test]
    fn long_help_ends_with_examples() {
        walk(&built(), &mut |command| {
            let is_of_clap = command
                .get_bin_name()
                .is_none_or(|name| name.contains(" help"));
            if is_of_clap || command.is_hide_set() {
                return;
            }
            let [_, help] = helps(command);
            let last = help.trim_end().rsplit("\n\n").next().unwrap_or_default();
            assert!(last.starts_with("Examples:\n"), "{help}");
        });
    }
}
