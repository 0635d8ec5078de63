//! Generates docs/reference/commands.md from the definition of the command line.

use crate::pages::heading;
use clap::{Arg, Command};
use taupe_command::COMMAND_GROUPS;

const HEAD: &str = "\
# Commands

<!-- Generated: cargo run -p taupe --example pages -- --reference docs/reference/commands.md -->

The commands of `taupe` on Linux. `taupe help COMMAND` prints the same text, and so does the manual page
`taupe-COMMAND(1)`. The commands of Windows are in [Taupe on Windows](../windows.md). On other systems `taupe`
has `check`, `strip`, `proxy`, `allowed-ips` and the commands of `wg`.
";

/// Returns the page as Markdown.
pub(crate) fn markdown() -> String {
    let mut command = taupe_command::command_line().disable_help_subcommand(true);
    command.build();
    let mut page = HEAD.to_owned();
    for group in COMMAND_GROUPS {
        let commands = group.commands.iter();
        let commands: Vec<_> = commands
            .filter_map(|name| command.find_subcommand(name))
            .collect();
        if commands.is_empty() {
            continue;
        }
        page += &format!("\n## {}\n\n| command | purpose |\n|---|---|\n", group.title);
        for one in &commands {
            let (name, about) = (one.get_name(), one.get_about().unwrap_or_default());
            page += &format!("| [`taupe {name}`](#taupe-{name}) | {about} |\n");
        }
        for one in commands {
            describe(one, &mut page);
        }
    }
    page
}

fn describe(command: &Command, page: &mut String) {
    let name = command.get_bin_name().unwrap_or_default();
    *page += &format!("\n### {name}\n");
    let about = command.get_long_about().or_else(|| command.get_about());
    for (index, paragraph) in about.iter().flat_map(paragraphs).enumerate() {
        let end = if index == 0 { "." } else { "" };
        *page += &format!("\n{paragraph}{end}\n");
    }
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ").lines();
    let usage: Vec<_> = usage
        .map(|line| line.trim_start_matches("       "))
        .collect();
    *page += &format!("\n```text\n{}\n```\n", usage.join("\n"));
    let arguments = command.get_arguments();
    let mut arguments = arguments
        .filter(|one| !one.is_hide_set() && one.get_id() != "help")
        .peekable();
    if arguments.peek().is_some() {
        *page += "\n| argument | meaning |\n|---|---|\n";
    }
    for one in arguments {
        *page += &row(one);
    }
    let after = command
        .get_after_long_help()
        .or_else(|| command.get_after_help());
    for paragraph in after.iter().flat_map(paragraphs) {
        match heading(&paragraph) {
            Some((title, body)) => {
                let lines = body.lines();
                let lines: Vec<_> = lines
                    .map(|line| line.strip_prefix("  ").unwrap_or(line))
                    .collect();
                *page += &format!("\n**{title}**\n\n```text\n{}\n```\n", lines.join("\n"));
            }
            None => *page += &format!("\n{paragraph}\n"),
        }
    }
    for one in command.get_subcommands() {
        describe(one, page);
    }
}

/// Returns the row of an argument. A vertical line would end its cell.
fn row(argument: &Arg) -> String {
    let short = argument.get_short();
    let short = short.map(|letter| format!("-{letter}, "));
    let help = argument.get_long_help().or_else(|| argument.get_help());
    let mut sentences = help.iter().flat_map(paragraphs).collect::<Vec<_>>();
    if let Some(summary) = sentences.first_mut()
        && !summary.ends_with('.')
    {
        summary.push('.');
    }
    let row = format!(
        "`{}{argument}` \0 {}",
        short.unwrap_or_default(),
        sentences.join(" ")
    );
    format!("| {} |\n", row.replace('|', "\\|").replace('\0', "|"))
}

fn paragraphs(text: &&clap::builder::StyledStr) -> Vec<String> {
    let text = text.to_string();
    let parts = text.split("\n\n");
    parts
        .map(|part| part.trim_end().to_owned())
        .filter(|part| !part.is_empty())
        .collect()
}
