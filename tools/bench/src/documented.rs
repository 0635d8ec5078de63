//! The commands of `taupe-lab` and `make bench` in the documentation.

use super::{Cli, Command, check_contestants, options};
use clap::Parser as _;
use clap::error::ErrorKind;
use std::iter::once;
use taupe_lab::documents::{all_blocks, lab_arguments};

#[test]
fn documented_commands_are_understood() {
    let blocks = all_blocks().expect("pages");
    let commands = blocks
        .iter()
        .flat_map(|block| block.commands.iter().map(move |command| (block, command)));
    let mut count = 0;
    for (block, command) in commands {
        let Some(arguments) = lab_arguments(&command.text) else {
            continue;
        };
        count += 1;
        let place = format!("{}: {}", block.place(command), command.text);
        match Cli::try_parse_from(once("taupe-lab".to_owned()).chain(arguments)) {
            Ok(Cli {
                command: Command::Run(run),
            }) => {
                check_contestants(&run.contestants)
                    .and_then(|()| options(&run, "/".into()).check())
                    .unwrap_or_else(|error| panic!("{place}: {error}"));
            }
            Ok(_) => {}
            Err(error) => assert_eq!(error.kind(), ErrorKind::DisplayHelp, "{place}: {error}"),
        }
    }
    assert!(count > 20, "{count} commands");
}
