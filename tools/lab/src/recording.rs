//! Recording of a program's lines with their times, in asciinema's format 2: a header in JSON, then one
//! event in JSON per line.

use crate::error::{Error, Result};
use serde_json::json;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::Instant;

/// Size of the terminal in columns and rows. The demo fits in it without scrolling twice.
const SIZE: (u16, u16) = (104, 34);

/// A recording to which lines are added as they are printed.
#[derive(Debug)]
pub struct Recording {
    file: File,
    begin: Instant,
}

impl Recording {
    /// Creates the file, or replaces it. The first line is the command, after a prompt.
    ///
    /// # Errors
    ///
    /// [`Error::Io`].
    pub fn create(path: &Path, command: &str) -> Result<Self> {
        let file = File::create(path).map_err(Error::io(path.display().to_string()))?;
        let begin = Instant::now();
        let mut recording = Self { file, begin };
        let (width, height) = SIZE;
        let header = json!({"version": 2, "width": width, "height": height, "title": command});
        recording.write(&header)?;
        recording.add(&format!("# {command}"))?;
        Ok(recording)
    }

    /// Adds a line, printed now.
    ///
    /// # Errors
    ///
    /// [`Error::Io`].
    pub fn add(&mut self, line: &str) -> Result<()> {
        let milliseconds = self.begin.elapsed().as_millis() as f64;
        self.write(&json!([milliseconds / 1e3, "o", format!("{line}\r\n")]))
    }

    fn write(&mut self, value: &serde_json::Value) -> Result<()> {
        writeln!(self.file, "{value}").map_err(Error::io("the recording"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn every_line_is_an_event() {
        let path = std::env::temp_dir().join(format!("recording-{}", std::process::id()));
        let mut recording = Recording::create(&path, "make demo").expect("a file");
        recording.add("ok \"quoted\"").expect("a line");
        let text = std::fs::read_to_string(&path).expect("a recording");
        std::fs::remove_file(&path).expect("a recording");
        let lines = text.lines().map(serde_json::from_str::<Value>);
        let lines = lines.collect::<Result<Vec<_>, _>>().expect("JSON");
        let [header, command, line] = &*lines else {
            panic!("{text}");
        };
        assert_eq!(header["version"], 2);
        assert_eq!(command[2], "# make demo\r\n");
        assert_eq!(
            (&line[1], &line[2]),
            (&json!("o"), &json!("ok \"quoted\"\r\n"))
        );
        assert!(line[0].as_f64() >= command[0].as_f64());
    }
}
