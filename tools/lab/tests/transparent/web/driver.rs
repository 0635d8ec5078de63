//! A browser that its driver controls (W3C WebDriver over HTTP).

use super::browser::SOON;
use crate::world::World;
use serde_json::{Value, json};
use std::fs;
use taupe_lab::process::{Process, wait_until};
use taupe_lab::sandbox::{scratch, scratch_file};
use taupe_lab::{Error, Result, ensure};

const DRIVER: &str = "http://127.0.0.1:9515";

/// Width of Firefox's narrowest window, in pixels. A magnified page has fewer.
const NARROWEST: u32 = 500;

/// Path of geckodriver, which `scripts/geckodriver` prints.
pub(crate) const GECKODRIVER: &str = "GECKODRIVER";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Engine {
    Chromium,
    Firefox,
}

impl Engine {
    /// Returns the command of its driver.
    fn driver(self) -> Result<(String, &'static [&'static str])> {
        Ok(match self {
            Self::Chromium => ("chromedriver".to_owned(), &["--port=9515"]),
            Self::Firefox => {
                let program = std::env::var(GECKODRIVER).map_err(|_| {
                    Error::unmet("GECKODRIVER is not set; `scripts/geckodriver` prints its value")
                })?;
                // The colour scheme is a setting of the browser.
                (program, &["--port=9515", "--allow-system-access"])
            }
        })
    }

    /// Returns the capabilities that a session needs.
    fn capabilities(self) -> Value {
        match self {
            Self::Chromium => {
                let profile = format!("--user-data-dir={}", scratch("profile").display());
                #[rustfmt::skip]
                let arguments = [
                    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                    "--disable-background-networking", "--no-proxy-server", "--hide-scrollbars", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--disable-component-update", "--disable-sync", &profile,
                ];
                json!({
                    "browserName": "chrome",
                    "goog:chromeOptions": {"args": arguments},
                    "goog:loggingPrefs": {"browser": "ALL"},
                })
            }
            Self::Firefox => json!({
                "browserName": "firefox",
                "moz:firefoxOptions": {
                    "binary": "/usr/bin/firefox-esr",
                    "args": ["-headless"],
                    "prefs": {"network.trr.mode": 5},
                },
            }),
        }
    }
}

/// A browser on `near`.
pub(super) struct Browser<'a> {
    world: &'a World,
    engine: Engine,
    session: String,
    _driver: Process,
}

impl<'a> Browser<'a> {
    pub(super) fn start(world: &'a World, engine: Engine) -> Result<Self> {
        let home = scratch("home");
        fs::create_dir_all(&home).map_err(Error::io("home"))?;
        let (program, options) = engine.driver()?;
        let mut command = world.near.command(&[&program]);
        command.args(options);
        command
            .env("HOME", &home)
            .env("XDG_RUNTIME_DIR", &home)
            .env_remove("DISPLAY");
        let driver = Process::start("near", command)?;
        let mut browser = Self {
            world,
            engine,
            session: String::new(),
            _driver: driver,
        };
        wait_until("the driver", SOON, || {
            let status = browser.call("GET", "/status", &Value::Null);
            Ok(status.is_ok_and(|status| status["ready"] == true))
        })?;
        let wanted = json!({"capabilities": {"alwaysMatch": engine.capabilities()}});
        let session = browser.call("POST", "/session", &wanted)?;
        let id = session["sessionId"].as_str().unwrap_or_default();
        browser.session = format!("/session/{id}");
        Ok(browser)
    }

    /// Executes a command of the protocol and returns its value.
    fn call(&self, method: &str, path: &str, body: &Value) -> Result<Value> {
        let url = format!("{DRIVER}{}{path}", self.session);
        let mut command = vec![
            "curl",
            "--silent",
            "--max-time",
            "90",
            "--request",
            method,
            &url,
        ];
        let text = scratch_file("request.json", &body.to_string())?;
        let data = format!("@{text}");
        if method == "POST" {
            command.extend([
                "--header",
                "Content-Type: application/json",
                "--data-binary",
                &data,
            ]);
        }
        let answer = self.world.near.attempt(&command)?.stdout;
        let answer: Value = serde_json::from_str(&answer)
            .map_err(|error| Error::unmet(format!("{path}: {error}: {answer}")))?;
        let value = &answer["value"];
        ensure!(value["error"].is_null(), "{path}: {value}");
        Ok(value.clone())
    }

    pub(super) fn open(&self, url: &str) -> Result<()> {
        self.call("POST", "/url", &json!({"url": url})).map(drop)
    }

    /// Executes a script and returns its result.
    pub(super) fn read(&self, script: &str) -> Result<Value> {
        let body = json!({"script": script, "args": []});
        self.call("POST", "/execute/sync", &body)
    }

    pub(super) fn text(&self, script: &str) -> Result<String> {
        let text = self.read(script)?;
        Ok(text.as_str().unwrap_or_default().to_owned())
    }

    pub(super) fn is(&self, script: &str) -> Result<bool> {
        Ok(self.read(script)? == true)
    }

    /// Presses a key, by its code in the protocol.
    pub(super) fn press(&self, key: &str) -> Result<()> {
        let actions = ["keyDown", "keyUp"].map(|kind| json!({"type": kind, "value": key}));
        let keys = json!({"actions": [{"type": "key", "id": "keys", "actions": actions}]});
        self.call("POST", "/actions", &keys).map(drop)
    }

    fn command(&self, name: &str, parameters: &Value) -> Result<Value> {
        let body = json!({"cmd": name, "params": parameters});
        self.call("POST", "/goog/cdp/execute", &body)
    }

    /// Sets the width of the window and the colour scheme.
    pub(super) fn show(&self, width: u32, scheme: &str) -> Result<()> {
        match self.engine {
            Engine::Chromium => {
                let metrics =
                    json!({"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false});
                self.command("Emulation.setDeviceMetricsOverride", &metrics)?;
                let features =
                    json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
                self.command("Emulation.setEmulatedMedia", &features)?;
            }
            Engine::Firefox => {
                let window = json!({"width": width.max(NARROWEST), "height": 900});
                self.call("POST", "/window/rect", &window)?;
                let zoom = f64::from(NARROWEST) / f64::from(width);
                let scheme = u8::from(scheme == "light");
                self.enter("chrome")?;
                self.read(&format!(
                    "Services.prefs.setIntPref('layout.css.prefers-color-scheme.content-override', {scheme});
                     const shown = Services.wm.getMostRecentWindow('navigator:browser').gBrowser.selectedBrowser;
                     shown.browsingContext.fullZoom = {};", zoom.max(1.0)
                ))?;
                self.enter("content")?;
            }
        }
        let query = format!("return matchMedia('(prefers-color-scheme: {scheme})').matches");
        wait_until("the colour scheme", SOON, || self.is(&query))?;
        let wide = format!("return window.innerWidth === {width}");
        wait_until("the width", SOON, || self.is(&wide))
    }

    /// Has Firefox execute the following scripts in a page ("content") or in the browser ("chrome").
    fn enter(&self, context: &str) -> Result<()> {
        let body = json!({"context": context});
        self.call("POST", "/moz/context", &body).map(drop)
    }

    /// Returns the complaints of the browser about the page. Firefox does not pass them on.
    pub(super) fn complaints(&self) -> Result<Vec<Value>> {
        if self.engine == Engine::Firefox {
            return Ok(Vec::new());
        }
        let log = self.call("POST", "/se/log", &json!({"type": "browser"}))?;
        let log = log.as_array().cloned();
        log.ok_or_else(|| Error::unmet("no log"))
    }

    /// Writes a picture of all of the page.
    pub(super) fn picture(&self, path: &str) -> Result<()> {
        let picture = match self.engine {
            Engine::Chromium => {
                let options = json!({"captureBeyondViewport": true});
                self.command("Page.captureScreenshot", &options)?["data"].take()
            }
            Engine::Firefox => self.call("GET", "/moz/screenshot/full", &Value::Null)?,
        };
        let data = picture.as_str().unwrap_or_default();
        let script = "base64 -d >\"$1\"";
        let write = ["sh", "-c", script, "sh", path];
        self.world.near.run_with_input(&write, data).map(drop)
    }

    /// Returns the obstacles that axe-core finds.
    pub(super) fn examine(&self, axe: &str) -> Result<Vec<String>> {
        let script = format!(
            "{axe};\nconst done = arguments[arguments.length - 1];\n\
             axe.run(document).then(it => done(it.violations.map(one => one.id + ': ' + one.help + ' ' + \
             one.nodes.map(node => node.html.slice(0, 200) + ' ' + node.failureSummary).join('; '))), \
             error => done([String(error)]));"
        );
        let body = json!({"script": script, "args": []});
        let found = self.call("POST", "/execute/async", &body)?;
        let found = found
            .as_array()
            .ok_or_else(|| Error::unmet(format!("{found}")))?;
        Ok(found.iter().map(ToString::to_string).collect())
    }
}

impl Drop for Browser<'_> {
    fn drop(&mut self) {
        let _ = self.call("DELETE", "", &Value::Null);
    }
}
