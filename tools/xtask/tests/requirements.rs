//! docs/evidence/requirements.md: each identifier occurs once, each row names evidence that exists,
//! and each requirement in docs/post-quantum.md has a marker with its identifier.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// A sentence that contains one of these is a requirement.
const NORMATIVE: &str =
    "must,never,not,cannot,refuse,refuses,refused,dropped,limited,checked,at most,up to";
/// Sections of docs/post-quantum.md without requirements. 0 is the text before the first.
const DESCRIPTIVE: [usize; 5] = [0, 5, 9, 10, 11];

fn read(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    std::fs::read_to_string(root.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns the text and the label of each `[text][label]`.
fn links(cell: &str) -> Vec<(&str, &str)> {
    let pieces: Vec<&str> = cell.split(['[', ']']).collect();
    let links = pieces.windows(3).filter(|it| it[1].is_empty());
    links.map(|it| (it[0], it[2])).collect()
}

/// Checks whether a file contains this test, row of a model, or invariant.
fn exists(path: &str, name: &str) -> bool {
    let source = read(path);
    if path.ends_with(".md") {
        return is_in_model(&source, name).unwrap_or(false);
    }
    let words: Vec<&str> = source.split_whitespace().collect();
    let text = words
        .join(" ")
        .replace("( ", "(")
        .replace("_crypto)", "crypto)");
    let forms = "#[test] fn NAME(/fn NAME(crypto)/SystemTest::new(\"NAME\",/Self::NAME,/def NAME(";
    let forms = forms.replace("NAME", name.trim_matches('`'));
    forms.split('/').any(|form| text.contains(form))
}

/// Checks for a row, such as "`model` `SWITCH`: `query`", in which the query holds or is attacked.
fn is_in_model(models: &str, name: &str) -> Option<bool> {
    let (row, query) = name.split_once(": ")?;
    let start = format!("| {} |", row.replacen(' ', " | ", 1));
    let attacked = query.strip_prefix("attack on ");
    let (column, query) = attacked.map_or((3, query), |query| (4, query));
    let rows = models.lines().filter(|line| line.starts_with(&start));
    let mut cells = rows.filter_map(|row| row.split('|').nth(column));
    Some(cells.any(|cell| cell.contains(query)))
}

/// Returns the sentences of docs/post-quantum.md with their sections. A sentence includes the
/// marker after it. A row of a table is a sentence.
fn sentences(page: &str) -> Vec<(usize, String)> {
    let (mut section, mut paragraphs) = (0, Vec::new());
    let mut lines = page.lines().peekable();
    while let Some(line) = lines.next() {
        section += usize::from(line.starts_with("## "));
        let is_head = lines.peek().is_some_and(|next| next.starts_with("|---"));
        let text = match ["#", "    ", "|---"].iter().any(|it| line.starts_with(it)) || is_head {
            true => "",
            false => line.trim(),
        };
        let starts = text.is_empty() || text.starts_with("- ") || text.starts_with('|');
        match paragraphs.last_mut() {
            Some((_, paragraph)) if !starts => *paragraph = format!("{paragraph} {text}"),
            _ => paragraphs.push((section, text.to_owned())),
        }
    }
    let mut sentences = Vec::new();
    for (section, text) in paragraphs {
        let text = text.replace(". <!-- ", " <!-- ").replace("--> ", "-->. ");
        sentences.extend(text.split(". ").map(|it| (section, it.to_owned())));
    }
    sentences
}

/// Returns the markers of the page, and adds its errors to `wrong`.
fn markers(page: &str, wrong: &mut Vec<String>) -> BTreeSet<String> {
    let mut marked = BTreeSet::new();
    for (section, sentence) in sentences(page) {
        let lower = sentence.to_lowercase();
        let words: Vec<_> = lower.split(|it: char| !it.is_alphanumeric()).collect();
        let words = format!(" {} ", words.join(" "));
        let mut normative = NORMATIVE.split(',').map(|it| format!(" {it} "));
        let is_normative = normative.any(|it| words.contains(&it));
        let comments = sentence.split("<!-- ").skip(1);
        let ids: Vec<&str> = comments.filter_map(|it| it.split(" -->").next()).collect();
        if is_normative && ids.is_empty() && !DESCRIPTIVE.contains(&section) {
            wrong.push(format!("no identifier in section {section}: {sentence}"));
        }
        for id in ids {
            if !id.starts_with(&format!("H-{section}-")) || !marked.insert(id.to_owned()) {
                wrong.push(format!("{id} occurs twice, or in section {section}"));
            }
        }
    }
    // A comment at the start of a line would end the paragraph (CommonMark 0.31 §4.6).
    for line in page
        .lines()
        .filter(|line| line.trim_start().starts_with("<!--"))
    {
        wrong.push(format!("a line starts with a comment: {line}"));
    }
    marked
}

#[test]
fn requirements_are_shown() {
    let table = read("docs/evidence/requirements.md");
    let definitions = table.lines().filter_map(|line| line.strip_prefix('['));
    let definitions = definitions.filter_map(|line| line.split_once("]: ../"));
    let files: BTreeMap<&str, String> = definitions
        .map(|(label, path)| (label, format!("docs/{path}")))
        .collect();
    let (mut wrong, mut listed) = (Vec::new(), BTreeSet::new());
    let mut needs_evidence = true;
    for row in table.lines() {
        needs_evidence &= row != "## Not shown";
        if !row.starts_with("| W-") && !row.starts_with("| H-") {
            continue;
        }
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let &[_, id, requirement, evidence, _] = &cells[..] else {
            panic!("not three columns: {row}");
        };
        let lacks_evidence = needs_evidence && links(evidence).is_empty();
        if requirement.is_empty() || evidence.is_empty() || lacks_evidence {
            wrong.push(format!("{id}: nothing shows it"));
        }
        if !listed.insert(id.to_owned()) {
            wrong.push(format!("{id} occurs twice"));
        }
        for (name, label) in links(evidence) {
            if !files.get(label).is_some_and(|path| exists(path, name)) {
                wrong.push(format!("{id}: there is no {name} in {label}"));
            }
        }
    }
    listed.retain(|id| id.starts_with("H-"));
    let marked = markers(&read("docs/post-quantum.md"), &mut wrong);
    for id in marked.symmetric_difference(&listed) {
        wrong.push(format!("{id} is not in both the page and the table"));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
