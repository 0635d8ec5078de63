//! Commands of the steps of `scripts/test`.

use taupe_lab::documents::{commands, words};
use taupe_lab::{Result, ensure};

/// Options that change what a command prints, or fail earlier: they make no other command of it.
const IGNORED: [&str; 3] = ["--locked", "--no-fail-fast", "--quiet"];

/// Commands of all steps, each as its words.
pub(crate) struct Steps(Vec<Vec<String>>);

impl Steps {
    pub(crate) fn read(script: &str) -> Self {
        let steps = commands(script).into_iter();
        Self(steps.filter_map(|step| step_words(&step.text)).collect())
    }

    /// Fails unless a step is the command. A word in capitals is a placeholder for any word.
    pub(crate) fn check_same(&self, command: &str) -> Result<()> {
        ensure!(
            self.has_same(command),
            "no step of scripts/test is this command"
        );
        Ok(())
    }

    /// Fails unless each text is the beginning of a step's command, which is another command.
    pub(crate) fn check_others(&self, command: &str, texts: &[&str]) -> Result<()> {
        ensure!(!texts.is_empty(), "no step is named");
        ensure!(
            !self.has_same(command),
            "a step is this command: say Same in place of Others"
        );
        for text in texts {
            let text_words = significant(words(text));
            let is_there = self.0.iter().any(|step| step.starts_with(&text_words));
            ensure!(is_there, "no step of scripts/test begins with `{text}`");
        }
        Ok(())
    }

    fn has_same(&self, command: &str) -> bool {
        let command = significant(words(command));
        self.0.iter().any(|step| {
            step.len() == command.len()
                && std::iter::zip(step, &command)
                    .all(|(word, documented)| word == documented || is_placeholder(documented))
        })
    }
}

/// Returns the words of a step's command, without the words that name the step and without
/// variables of its environment. `None` for other lines.
fn step_words(line: &str) -> Option<Vec<String>> {
    let all = words(line);
    let names = match all.first()?.as_str() {
        "aside" => 4,
        "check" | "must" | "tests" => 2,
        _ => return None,
    };
    let command = all.into_iter().skip(names);
    let command = command.skip_while(|word| word == "env" || word.contains('='));
    Some(significant(command))
}

fn significant(words: impl IntoIterator<Item = String>) -> Vec<String> {
    let words = words.into_iter();
    words.filter(|word| !IGNORED.contains(&&**word)).collect()
}

fn is_placeholder(word: &str) -> bool {
    word.bytes().all(|byte| byte.is_ascii_uppercase())
}

/// Checks the comparison of commands with steps.
pub(crate) fn steps_are_compared_by_their_commands() -> Result<()> {
    let steps = Steps::read(
        "# check \"no step\" cargo doc\n\
         check \"lints\" env A=1 \\\n    cargo clippy --quiet -p one\n\
         aside builds tests \"a b\" cargo test --locked -p one -- x\n\
         cargo bench\n",
    );
    for (command, is_same) in [
        ("cargo clippy -p one", true),
        ("cargo clippy -p NAME", true),
        ("cargo test -p one -- x", true),
        ("cargo clippy -p two", false),
        ("cargo clippy -p", false),
        ("cargo test -p one", false),
        ("cargo bench", false),
        ("cargo doc", false),
    ] {
        let found = steps.check_same(command).is_ok();
        ensure!(found == is_same, "`{command}` is a step: {found}");
        let others = |texts: &[&str]| steps.check_others(command, texts).is_ok();
        ensure!(others(&["cargo test -p one"]) != is_same, "`{command}`");
        ensure!(!others(&["cargo test", "clippy -p one"]), "`{command}`");
        ensure!(!others(&[]), "`{command}`: no step");
    }
    Ok(())
}
