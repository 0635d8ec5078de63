//! Commands in the documentation: the blocks ```` ```sh ```` of its pages.

use crate::error::{Error, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command as Program;

/// A fenced block of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// Path of the page, relative to the root of the tree.
    pub page: String,
    /// Line of the opening fence.
    pub line: usize,
    /// Text after the opening fence: `sh`, `text`.
    pub kind: String,
    /// Commands of a block of kind `sh`, in order.
    pub commands: Vec<Command>,
}

/// A command line of a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    /// Its first line in the page.
    pub line: usize,
    /// The command without its comment; lines that `\` continues are joined.
    pub text: String,
    /// The comment after it, without `#`.
    pub comment: String,
}

impl Command {
    /// Returns the words as a shell separates them, without quotation marks. Expansions stay as
    /// they are.
    #[must_use]
    pub fn words(&self) -> Vec<String> {
        words(&self.text)
    }
}

impl Block {
    /// Returns the place of a command: `README.md:50`.
    #[must_use]
    pub fn place(&self, command: &Command) -> String {
        format!("{}:{}", self.page, command.line)
    }
}

/// Returns the root of the tree.
#[must_use]
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the blocks of README.md, CONTRIBUTING.md and all pages below docs.
///
/// # Errors
///
/// [`Error`] if a page cannot be read, or a block has no end.
pub fn all_blocks() -> Result<Vec<Block>> {
    let mut pages = vec!["README.md".to_owned(), "CONTRIBUTING.md".to_owned()];
    add_pages("docs", &mut pages)?;
    pages.sort();
    let mut all = Vec::new();
    for page in pages {
        let text = fs::read_to_string(root().join(&page)).map_err(Error::io(&*page))?;
        all.extend(blocks(&page, &text)?);
    }
    Ok(all)
}

fn add_pages(folder: &str, pages: &mut Vec<String>) -> Result<()> {
    for entry in fs::read_dir(root().join(folder)).map_err(Error::io(folder))? {
        let entry = entry.map_err(Error::io(folder))?;
        let path = format!("{folder}/{}", entry.file_name().to_string_lossy());
        if entry.file_type().map_err(Error::io(&*path))?.is_dir() {
            add_pages(&path, pages)?;
        } else if path.ends_with(".md") {
            pages.push(path);
        }
    }
    Ok(())
}

/// Returns the fenced blocks of a text in order.
///
/// # Errors
///
/// [`Error::Malformed`] if a block has no end.
pub fn blocks(page: &str, text: &str) -> Result<Vec<Block>> {
    let fences = fences(page, text)?.into_iter();
    let block = |Fence {
                     line,
                     kind,
                     content,
                 }: Fence<'_>| Block {
        page: page.to_owned(),
        line,
        kind: kind.to_owned(),
        commands: match kind {
            "sh" => commands_of(&content),
            _ => Vec::new(),
        },
    };
    Ok(fences.map(block).collect())
}

/// A fenced block as it stands in a text.
pub(crate) struct Fence<'a> {
    /// Line of the opening fence.
    pub(crate) line: usize,
    /// Text after the opening fence.
    pub(crate) kind: &'a str,
    /// Lines between the fences, with their numbers.
    pub(crate) content: Vec<(usize, &'a str)>,
}

/// Returns the fenced blocks of a text as they stand in it, in order.
pub(crate) fn fences<'a>(page: &str, text: &'a str) -> Result<Vec<Fence<'a>>> {
    const FENCE: &str = "```";
    let mut found = Vec::new();
    let mut lines = text.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        let Some(kind) = line.trim_start().strip_prefix(FENCE) else {
            continue;
        };
        let mut content = Vec::new();
        loop {
            let (number, line) = lines.next().ok_or_else(|| Error::Malformed {
                what: page.to_owned(),
                why: format!("the block in line {} has no end", number + 1),
            })?;
            if line.trim() == FENCE {
                break;
            }
            content.push((number + 1, line));
        }
        found.push(Fence {
            line: number + 1,
            kind: kind.trim(),
            content,
        });
    }
    Ok(found)
}

/// Returns the commands of a script in order. Knows comments and continued lines, and no other syntax.
#[must_use]
pub fn commands(script: &str) -> Vec<Command> {
    let lines = script.lines().enumerate();
    commands_of(&lines.map(|(at, text)| (at + 1, text)).collect::<Vec<_>>())
}

fn commands_of(lines: &[(usize, &str)]) -> Vec<Command> {
    let mut found: Vec<Command> = Vec::new();
    let mut continues = false;
    for &(line, text) in lines {
        let (text, comment) = split_comment(text);
        let (text, more) = match text.strip_suffix('\\') {
            Some(text) => (text.trim(), true),
            None => (text.trim(), false),
        };
        match found.last_mut() {
            Some(last) if continues => {
                last.text = format!("{} {text}", last.text);
                last.comment.push_str(comment);
            }
            _ if text.is_empty() => {}
            _ => found.push(Command {
                line,
                text: text.to_owned(),
                comment: comment.to_owned(),
            }),
        }
        continues = more;
    }
    found
}

/// Splits a line at the `#` that begins a comment.
fn split_comment(line: &str) -> (&str, &str) {
    let (mut quote, mut before) = (None, ' ');
    for (at, character) in line.char_indices() {
        match (quote, character) {
            (None, '#') if before.is_whitespace() => {
                return (line[..at].trim_end(), line[at + 1..].trim());
            }
            (None, '\'' | '"') => quote = Some(character),
            (Some(open), _) if open == character => quote = None,
            _ => {}
        }
        before = character;
    }
    (line.trim_end(), "")
}

/// Separates a command line into words, without quotation marks.
#[must_use]
pub fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let (mut word, mut quote) = (None::<String>, None);
    for character in line.chars() {
        match (quote, character) {
            (None, '\'' | '"') => {
                quote = Some(character);
                word.get_or_insert_default();
            }
            (Some(open), _) if open == character => quote = None,
            (None, _) if character.is_whitespace() => words.extend(word.take()),
            _ => word.get_or_insert_default().push(character),
        }
    }
    words.extend(word);
    words
}

/// Returns the arguments that a command gives to `taupe-lab`, by itself or in
/// `make bench BENCH="…"`; `None` for other commands.
#[must_use]
pub fn lab_arguments(command: &str) -> Option<Vec<String>> {
    let words = words(command);
    let (first, rest) = words.split_first()?;
    if first.rsplit('/').next() == Some("taupe-lab") {
        return Some(rest.to_vec());
    }
    let kind = rest.first().filter(|_| first == "make")?;
    let mut arguments = vec!["run".to_owned()];
    match &**kind {
        "bench" => {}
        "bench-full" => arguments.push("--full".to_owned()),
        _ => return None,
    }
    let more = rest.iter().find_map(|word| word.strip_prefix("BENCH="));
    arguments.extend(
        more.unwrap_or_default()
            .split_whitespace()
            .map(str::to_owned),
    );
    Some(arguments)
}

/// Runs a program of this machine in the root of the tree, for its standard output.
///
/// # Errors
///
/// [`Error::Command`] if it fails.
pub fn run_in_tree(words: &[&str]) -> Result<String> {
    let (program, arguments) = words.split_first().unwrap_or((&"true", &[]));
    let mut command = Program::new(program);
    command.args(arguments).current_dir(root());
    Ok(crate::process::run("the tree", command, None)?.stdout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_lose_their_comments_and_are_joined() {
        let text = "a\n```sh\n# first\none   # x\n\ntwo a \\\n    --b 'c # d' # y\n```\n```text\nno\n```\n";
        let found = blocks("p.md", text).unwrap();
        let kinds: Vec<_> = found
            .iter()
            .map(|block| (&*block.kind, block.line))
            .collect();
        assert_eq!(kinds, [("sh", 2), ("text", 9)]);
        let commands: Vec<_> = found[0]
            .commands
            .iter()
            .map(|command| (command.line, &*command.text, &*command.comment))
            .collect();
        assert_eq!(commands, [(4, "one", "x"), (6, "two a --b 'c # d'", "y")]);
        assert_eq!(found[0].commands[1].words(), ["two", "a", "--b", "c # d"]);
        assert!(found[1].commands.is_empty());
        assert!(blocks("p.md", "```sh\nno end\n").is_err());
    }

    #[test]
    fn arguments_of_measurements() {
        let of = |line| lab_arguments(line).map(|words| words.join(" "));
        assert_eq!(
            of("target/release/taupe-lab run --only a"),
            Some("run --only a".into())
        );
        assert_eq!(
            of("make bench BENCH=\"--only a\""),
            Some("run --only a".into())
        );
        assert_eq!(of("make bench-full"), Some("run --full".into()));
        assert_eq!(of("make bench-micro"), None);
        assert_eq!(of("ls taupe-lab"), None);
    }
}
