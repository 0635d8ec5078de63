//! The web page in a browser: at two widths and in both colour schemes it writes nothing to the
//! console and fetches nothing.

mod fixture;

use serde::Deserialize;
use std::fs;
use std::process::Command;
use std::time::Duration;
use taupe_bench::report;
use taupe_lab::process;
use taupe_lab::sandbox::{Suite, SystemTest, scratch, scratch_file};
use taupe_lab::{Error, Result, ensure};

/// Widths in pixels.
const WIDTHS: [u16; 2] = [1280, 400];

const SCRIPT: &str = include_str!("browser.js");

fn main() {
    let limit = Duration::from_secs(120);
    Suite::new(vec![
        SystemTest::new("pages_are_in_order_in_light", || in_order(false)).limit(limit),
        SystemTest::new("pages_are_in_order_in_dark", || in_order(true)).limit(limit),
        SystemTest::new("faults_of_a_page_are_found", faults_are_found).limit(limit),
    ])
    .main()
}

/// Result of the script for one page at one width.
#[derive(Debug, Deserialize)]
struct Found {
    name: String,
    dark: bool,
    light: bool,
    width: u16,
    plots: usize,
    title: String,
    wrong: Vec<String>,
}

fn in_order(dark: bool) -> Result<()> {
    let mut partial = fixture::full();
    partial.complete = false;
    partial.series.truncate(2);
    partial.distributions.truncate(1);
    let reports = [
        ("full", fixture::full()),
        ("empty", fixture::empty()),
        ("partial", partial),
        ("nasty", fixture::nasty()),
    ];
    let pages: Vec<(&str, String)> = reports
        .iter()
        .map(|(name, report)| (*name, report::html(report)))
        .collect();
    let (found, console) = look(&pages, dark)?;
    ensure!(console.is_empty(), "the console says {console:?}");
    ensure!(found.len() == 8, "looked at {} pages of 8", found.len());
    for page in &found {
        ensure!(page.wrong.is_empty(), "{page:#?}");
        ensure!(
            page.dark == dark && page.light != dark,
            "scheme of {page:?}"
        );
        ensure!(page.title.starts_with("Tunnels compared"), "{page:?}");
        let expected = page.name.rsplit('-').next();
        ensure!(
            expected == Some(&*page.width.to_string()),
            "width of {page:?}"
        );
    }
    let plots = |name: &str| {
        let mut pages = found.iter().filter(|page| page.name.starts_with(name));
        pages.next().map(|page| page.plots)
    };
    ensure!(plots("full") >= Some(14), "{:?} plots", plots("full"));
    ensure!(plots("empty") == Some(0), "{:?} plots", plots("empty"));
    Ok(())
}

/// Checks the script itself with a page that has every fault it looks for.
fn faults_are_found() -> Result<()> {
    let page = "<!DOCTYPE html><html><head><style>html{color:#aaa;background:#fff}</style></head>\
        <body><div style='width:3000px'>wide</div><p>pale</p><table><tr><td>x</table>\
        <svg viewBox='0 0 100 20' width='100' height='20' aria-label='plot'>\
        <text x='90' y='15'>outside</text><text x='88' y='15'>over</text></svg>\
        <img src='http://192.0.2.1/x.png'><script>console.error('a word')</script></body></html>";
    let (found, console) = look(&[("faulty", page.to_owned())], false)?;
    ensure!(
        console.iter().any(|line| line.contains("a word")),
        "console: {console:?}"
    );
    for page in &found {
        for word in [
            "scrolls sideways",
            "outside its plot",
            "on one another",
            "without a name",
            "contrast",
            "outside a box",
            "script of the page's own",
            "fetched",
        ] {
            ensure!(
                page.wrong.iter().any(|what| what.contains(word)),
                "{word}: {page:#?}"
            );
        }
    }
    ensure!(found.len() == WIDTHS.len(), "{found:?}");
    Ok(())
}

/// Opens all pages at all widths in one browser; returns the script's results and the console
/// messages.
fn look(pages: &[(&str, String)], dark: bool) -> Result<(Vec<Found>, Vec<String>)> {
    let mut frames = String::new();
    for (name, page) in pages {
        let (before, after) = page
            .rsplit_once("</body>")
            .ok_or_else(|| Error::unmet("a page without an end"))?;
        let page = format!("{before}<script>{SCRIPT}</script></body>{after}");
        scratch_file(&format!("{name}.html"), &page)?;
        for width in WIDTHS {
            frames.push_str(&format!(
                "<iframe name='{name}-{width}' src='{name}.html' \
                 style='width:{width}px;height:900px;border:0'></iframe>"
            ));
        }
    }
    // Collects the messages of the frames.
    let around = format!(
        "<!DOCTYPE html><meta charset='utf-8'><meta name='color-scheme' content='light dark'>\
         <pre id='found'>[]</pre><script>const all = []; onmessage = event => {{\
         all.push(event.data); found.textContent = JSON.stringify(all) }}</script>{frames}"
    );
    let start = scratch_file("around.html", &around)?;
    let mut browser = Command::new("chromium");
    browser
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
        ])
        .args([
            "--no-first-run",
            "--disable-extensions",
            "--hide-scrollbars",
        ])
        .args(["--enable-logging=stderr", "--virtual-time-budget=20000"])
        .arg(format!(
            "--blink-settings=preferredColorScheme={}",
            u8::from(!dark)
        ))
        .arg(format!("--user-data-dir={}", scratch("browser").display()))
        .arg("--dump-dom")
        .arg(format!("file://{start}"))
        .env("HOME", scratch("home"));
    fs::create_dir_all(scratch("home")).map_err(Error::io("home of the browser"))?;
    let output = process::run("the browser", browser, None)?;
    // The browser's own preloaded pages also write to the console.
    let written = |line: &&str| line.contains(":CONSOLE") && !line.contains("source: chrome://");
    let console = output.stderr.lines().filter(written);
    let console = console.map(str::to_owned).collect();
    let found = output
        .stdout
        .split_once("<pre id=\"found\">")
        .and_then(|(_, rest)| rest.split_once("</pre>"))
        .map(|(found, _)| found)
        .ok_or_else(|| Error::unmet(format!("no answer in {}", output.stdout)))?;
    let found = found
        .replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("&nbsp;", " ")
        .replace("&amp;", "&");
    let found = serde_json::from_str(&found).map_err(|error| Error::Malformed {
        what: "what the script found".to_owned(),
        why: error.to_string(),
    })?;
    Ok((found, console))
}
