//! Manual pages and shell completions, generated from the definition of the command line.

use clap::{Arg, ArgAction, Command};
use clap_complete::{Shell, generate};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use std::fs;
use std::io::{self, Write as _};
use std::path::Path;
use taupe_command::COMMAND_GROUPS;

/// Writes all pages and completions into a folder, which is created if necessary.
pub(crate) fn write(folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let command = taupe_command::command_line().subcommand_value_name("COMMAND");
    let mut command = command.disable_help_subcommand(true);
    command.build();
    let nested = command.get_subcommands().flat_map(Command::get_subcommands);
    let all = command.get_subcommands().chain(nested).chain([&command]);
    for command in all {
        let (name, page) = manual_page(command)?;
        fs::write(folder.join(name), page)?;
    }
    for (shell, name) in [
        (Shell::Bash, "taupe.bash"),
        (Shell::Zsh, "_taupe"),
        (Shell::Fish, "taupe.fish"),
    ] {
        fs::write(folder.join(name), completions(shell))?;
    }
    Ok(())
}

/// Returns the manual page of a command and the page's file name. It differs from the page of
/// `clap_mangen` in the text after the options, which gets sections.
fn manual_page(command: &Command) -> io::Result<(String, Vec<u8>)> {
    let man = Man::new(command.clone());
    let name = man.get_filename();
    let title = name.trim_end_matches(".1").to_uppercase();
    let mut page = Vec::new();
    // `render_title` omits an empty date, so the next argument would be taken for the date.
    let version = env!("CARGO_PKG_VERSION");
    writeln!(page, ".TH {title} 1 \"\" \"taupe {version}\" \"Taupe\"")?;
    man.render_name_section(&mut page)?;
    page.extend(synopsis(&man, command)?);
    man.render_description_section(&mut page)?;
    let after = command
        .get_after_long_help()
        .or_else(|| command.get_after_help());
    let after = after.map(ToString::to_string).unwrap_or_default();
    let (sections, prose): (Vec<_>, Vec<_>) = after
        .split("\n\n")
        .filter(|paragraph| !paragraph.is_empty())
        .partition(|paragraph| heading(paragraph).is_some());
    for paragraph in prose {
        let mut roff = Roff::default();
        roff.control("PP", []).text([roman(paragraph)]);
        page.write_all(roff.render().as_bytes())?;
    }
    if command.find_subcommand("up").is_some() {
        page.extend(groups(command));
    } else if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    if command
        .get_arguments()
        .any(|argument| !argument.is_hide_set())
    {
        man.render_options_section(&mut page)?;
    }
    for (title, body) in sections.into_iter().filter_map(heading) {
        let mut roff = Roff::default();
        roff.control("SH", [title.to_uppercase().as_str()]);
        roff.control("nf", []);
        for line in body.lines() {
            roff.text([roman(line.strip_prefix("  ").unwrap_or(line))]);
        }
        roff.control("fi", []);
        page.write_all(roff.render().as_bytes())?;
    }
    Ok((name, page))
}

/// Lists the commands of `taupe` by group.
fn groups(command: &Command) -> Vec<u8> {
    let mut roff = Roff::default();
    roff.control("SH", ["COMMANDS"]);
    for group in COMMAND_GROUPS {
        let commands = group.commands.iter();
        let commands: Vec<_> = commands
            .filter_map(|name| command.find_subcommand(name))
            .collect();
        if !commands.is_empty() {
            roff.control("SS", [group.title]);
        }
        for one in commands {
            roff.control("TP", []);
            roff.text([bold(format!("taupe-{}", one.get_name())), roman("(1)")]);
            roff.text([roman(one.get_about().unwrap_or_default().to_string())]);
        }
    }
    roff.render().into_bytes()
}

/// Returns the synopsis with the values of options, which `clap_mangen` omits.
fn synopsis(man: &Man, command: &Command) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    man.render_synopsis_section(&mut text)?;
    let mut text = String::from_utf8_lossy(&text).into_owned();
    let takes_value = |one: &&Arg| !one.is_positional() && one.get_action().takes_values();
    for option in command.get_arguments().filter(takes_value) {
        let (Some(long), Some(names)) = (option.get_long(), option.get_value_names()) else {
            continue;
        };
        let flag = format!("\\fB\\-\\-{}\\fR]", long.replace('-', "\\-"));
        let more = match option.get_action() {
            ArgAction::Append => "...",
            _ => "",
        };
        let with_value = format!(
            "{} \\fI{}\\fR]{more}",
            flag.trim_end_matches(']'),
            names.join(" ")
        );
        text = text.replace(&flag, &with_value);
    }
    Ok(text.into_bytes())
}

/// Splits a paragraph whose first line ends with a colon into title and body.
pub(crate) fn heading(paragraph: &str) -> Option<(&str, &str)> {
    let (first, body) = paragraph.split_once('\n')?;
    Some((first.strip_suffix(':')?, body))
}

/// Returns the completions of `clap_complete`, extended by the names of tunnels.
fn completions(shell: Shell) -> String {
    let mut text = Vec::new();
    generate(
        shell,
        &mut taupe_command::command_line(),
        "taupe",
        &mut text,
    );
    let text = String::from_utf8_lossy(&text);
    match shell {
        Shell::Zsh => {
            let (head, rest) = text.split_once('\n').unwrap_or((&text, ""));
            let rest = rest.replace("/etc/wireguard:_files'", "/etc/wireguard:_taupe_tunnels'");
            let tunnels = include_str!("../../../../packaging/completions/tunnels.zsh");
            format!("{head}\n{tunnels}{rest}")
        }
        Shell::Fish => {
            text.into_owned() + include_str!("../../../../packaging/completions/tunnels.fish")
        }
        _ => text.into_owned() + include_str!("../../../../packaging/completions/tunnels.bash"),
    }
}
