//! A real Chromium, driven over the DevTools protocol through two pipes. Gone when dropped.
//!
//! The browser reads commands on descriptor 3 and answers on 4; a shell makes those of our pipe's
//! ends. So no port is opened and no library is needed. `scripts/lib/setup.sh` installs it.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use serde_json::{Value, json};

use super::poll::{LIMIT, wait_for};

/// One part of a page as a screen reader has it.
#[derive(Debug)]
pub struct AccessibleNode {
    pub role: String,
    pub name: String,
    pub is_focusable: bool,
}

/// A browser with one open tab.
pub struct Browser {
    child: Child,
    commands: ChildStdin,
    messages: Receiver<Value>,
    session: Option<String>,
    next: u64,
    /// What the page complained about.
    pub errors: Vec<String>,
    /// Every URL that was requested.
    pub requests: Vec<String>,
    _profile: tempfile::TempDir,
}

impl Browser {
    pub fn start() -> Self {
        let profile = tempfile::tempdir().unwrap();
        let mut child = Command::new("sh")
            .args(["-c", "exec \"$0\" \"$@\" 3<&0 4>&1 1>/dev/null 2>&1"])
            .arg("chromium")
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-quic",
                "--no-first-run",
                "--disable-background-networking",
                "--disable-component-update",
                "--disable-sync",
                "--disable-dev-shm-usage",
                "--hide-scrollbars",
                "--remote-debugging-pipe",
            ])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .arg("about:blank")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let commands = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, messages) = channel();
        std::thread::spawn(move || {
            for part in output.split(0).map_while(Result::ok) {
                let Ok(message) = serde_json::from_slice(&part) else {
                    continue;
                };
                if sender.send(message).is_err() {
                    return;
                }
            }
        });
        let mut browser = Self {
            child,
            commands,
            messages,
            session: None,
            next: 0,
            errors: Vec::new(),
            requests: Vec::new(),
            _profile: profile,
        };
        let target = browser.command("Target.createTarget", json!({"url": "about:blank"}));
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let attached = browser.command("Target.attachToTarget", attach);
        browser.session = Some(attached["sessionId"].as_str().unwrap().to_owned());
        for domain in ["Page", "Runtime", "Network", "Log"] {
            browser.command(&format!("{domain}.enable"), json!({}));
        }
        browser.size(1280, 900);
        browser
    }

    /// Sends a command and returns its result.
    pub fn command(&mut self, method: &str, params: Value) -> Value {
        self.next += 1;
        let mut message = json!({"id": self.next, "method": method, "params": params});
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        self.commands.write_all(&bytes).unwrap();
        self.commands.flush().unwrap();
        loop {
            let answer = self
                .messages
                .recv_timeout(LIMIT)
                .unwrap_or_else(|err| panic!("no answer to {method}: {err}"));
            if answer["id"] == self.next {
                assert!(answer["error"].is_null(), "{method}: {}", answer["error"]);
                return answer["result"].clone();
            }
            self.receive(&answer);
        }
    }

    /// Notes complaints and requests.
    fn receive(&mut self, message: &Value) {
        let params = &message["params"];
        match message["method"].as_str().unwrap_or_default() {
            "Runtime.exceptionThrown" => self.errors.push(params["exceptionDetails"].to_string()),
            "Runtime.consoleAPICalled" if params["type"] == "error" => {
                self.errors.push(params["args"].to_string());
            }
            "Log.entryAdded" if params["entry"]["level"] == "error" => {
                self.errors.push(params["entry"].to_string());
            }
            "Network.requestWillBeSent" => {
                let url = params["request"]["url"].as_str().unwrap_or_default();
                self.requests.push(url.to_owned());
            }
            _ => {}
        }
    }

    pub fn size(&mut self, width: u32, height: u32) {
        let metrics = json!({
            "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600
        });
        self.command("Emulation.setDeviceMetricsOverride", metrics);
    }

    /// Chooses between dark and light.
    pub fn scheme(&mut self, scheme: &str) {
        self.prefer("prefers-color-scheme", scheme);
    }

    /// Sets what the person before the screen prefers.
    pub fn prefer(&mut self, feature: &str, value: &str) {
        let media = json!({"features": [{"name": feature, "value": value}]});
        self.command("Emulation.setEmulatedMedia", media);
    }

    /// Returns the accessibility tree, as screen readers get it: role and name of every node.
    pub fn accessibility_tree(&mut self) -> Vec<AccessibleNode> {
        let tree = self.command("Accessibility.getFullAXTree", json!({}));
        let nodes = tree["nodes"].as_array().unwrap().iter();
        let text = |value: &Value| value["value"].as_str().unwrap_or_default().to_owned();
        nodes
            .filter(|node| node["ignored"] != true)
            .map(|node| {
                let properties = node["properties"].as_array();
                let mut properties = properties.into_iter().flatten();
                AccessibleNode {
                    role: text(&node["role"]),
                    name: text(&node["name"]),
                    is_focusable: properties
                        .any(|it| it["name"] == "focusable" && it["value"]["value"] == true),
                }
            })
            .collect()
    }

    pub fn open(&mut self, url: &str) {
        self.command("Page.navigate", json!({ "url": url }));
    }

    /// Evaluates an expression in the page and returns its value.
    pub fn eval(&mut self, expression: &str) -> Value {
        let params = json!({
            "expression": expression, "returnByValue": true, "awaitPromise": true
        });
        let result = self.command("Runtime.evaluate", params);
        assert!(
            result["exceptionDetails"].is_null(),
            "{expression}: {}",
            result["exceptionDetails"]
        );
        result["result"]["value"].clone()
    }

    /// Waits until an expression is true.
    pub fn wait(&mut self, expression: &str) {
        let guarded =
            format!("(() => {{ try {{ return !!({expression}) }} catch {{ return false }} }})()");
        wait_for(expression, || {
            let holds = self.eval(&guarded) == true;
            holds.then_some(()).ok_or_else(|| {
                let text = self.eval("document.body?.innerText");
                (text, self.errors.clone())
            })
        });
    }

    /// Presses a key where the focus is.
    pub fn key(&mut self, key: &str) {
        let codes = [
            ("Enter", 13),
            ("Tab", 9),
            ("Escape", 27),
            (" ", 32),
            ("ArrowDown", 40),
            ("ArrowRight", 39),
        ];
        let code = codes.iter().find(|(name, _)| *name == key).unwrap().1;
        let mut params = json!({
            "type": "keyDown", "key": key, "code": key, "windowsVirtualKeyCode": code
        });
        match key {
            "Enter" => params["text"] = json!("\r"),
            " " => params["text"] = json!(" "),
            _ => {}
        }
        self.command("Input.dispatchKeyEvent", params.clone());
        params["type"] = json!("keyUp");
        self.command("Input.dispatchKeyEvent", params);
    }

    /// Waits for something to click on, and clicks it.
    pub fn click(&mut self, selector: &str) {
        let found = format!("document.querySelector({selector:?})");
        self.wait(&found);
        self.eval(&format!("{found}.click()"));
    }

    /// Replaces the text of a field, as if it was typed.
    pub fn fill(&mut self, selector: &str, text: &str) {
        let found = format!("document.querySelector({selector:?})");
        self.wait(&found);
        self.eval(&format!("{found}.focus(), {found}.select()"));
        self.text(text);
    }

    /// Waits until an element contains a text.
    pub fn shows(&mut self, selector: &str, text: &str) {
        self.wait(&format!(
            "document.querySelector({selector:?}).innerText.includes({text:?})"
        ));
    }

    /// Waits until the page follows the fleet.
    pub fn live(&mut self) {
        self.wait("document.querySelector('#link').dataset.link === 'live'");
    }

    /// Types a text where the focus is.
    pub fn text(&mut self, text: &str) {
        self.command("Input.insertText", json!({ "text": text }));
    }

    /// Returns the page as it looks, as a PNG.
    pub fn picture(&mut self) -> Vec<u8> {
        let shot = self.command("Page.captureScreenshot", json!({"format": "png"}));
        data_encoding::BASE64
            .decode(shot["data"].as_str().unwrap().as_bytes())
            .unwrap()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
