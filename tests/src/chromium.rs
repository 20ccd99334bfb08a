//! Headless Chromium, driven over the pipe of its DevTools protocol: JSON messages that end with a zero byte.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use data_encoding::BASE64;
use serde_json::{Value, json};
use tempfile::TempDir;

/// Timeout of a command, and of [`Tab::until`]: the machine may be busy.
const WITHIN: Duration = Duration::from_secs(60);

/// Interval of [`Tab::until`].
const BETWEEN: Duration = Duration::from_millis(20);

/// Shell script that gives Chromium the child's pipes as descriptors 3 and 4, which the protocol uses.
const START: &str = "exec chromium \"$@\" 3<&0 4>&1 0</dev/null 1>/dev/null 2>/dev/null";

/// A browser with one tab. Killed on drop.
pub struct Tab {
    process: Child,
    commands: ChildStdin,
    messages: Receiver<Value>,
    reader: Option<JoinHandle<()>>,
    events: VecDeque<Value>,
    session: String,
    last: u64,
    _profile: TempDir,
}

impl Tab {
    /// Starts Chromium with a tab of this size, in pixels.
    ///
    /// # Panics
    /// If Chromium is not installed or does not start.
    pub fn open(width: u32, height: u32) -> Tab {
        let installed = Command::new("chromium").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        assert!(
            installed.is_ok_and(|status| status.success()),
            "chromium does not run; install it with 'scripts/packages' or 'apt-get install chromium'"
        );
        let profile = TempDir::new().expect("a folder for the profile");
        let mut command = Command::new("sh");
        command.args(["-c", START, "sh", "--headless=new", "--no-sandbox", "--remote-debugging-pipe"]);
        // No requests of the browser itself.
        command.args(["--no-first-run", "--disable-background-networking", "--disable-component-update"]);
        command.args(["--disable-sync", "--disable-dev-shm-usage", "--disable-gpu", "--hide-scrollbars"]);
        command.arg(format!("--window-size={width},{height}"));
        command.arg(format!("--user-data-dir={}", profile.path().display())).arg("about:blank");
        let mut process =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("a shell");
        let commands = process.stdin.take().expect("a pipe");
        let mut answers = BufReader::new(process.stdout.take().expect("a pipe"));
        let (sender, messages) = mpsc::channel();
        let reader = std::thread::spawn(move || {
            let mut message = Vec::new();
            while answers.read_until(0, &mut message).is_ok_and(|count| count > 0) {
                if message.last() == Some(&0) {
                    message.pop();
                }
                let Ok(value) = serde_json::from_slice(&message) else { return };
                if sender.send(value).is_err() {
                    return;
                }
                message.clear();
            }
        });
        let mut tab = Tab {
            process,
            commands,
            messages,
            reader: Some(reader),
            events: VecDeque::new(),
            session: String::new(),
            last: 0,
            _profile: profile,
        };
        tab.attach(width, height);
        tab
    }

    fn attach(&mut self, width: u32, height: u32) {
        let target = self.command("Target.createTarget", json!({"url": "about:blank"}))["targetId"].clone();
        let attached = self.command("Target.attachToTarget", json!({"targetId": target, "flatten": true}));
        self.session = attached["sessionId"].as_str().expect("a session").to_owned();
        for domain in ["Page", "Runtime", "Log", "Network", "Audits"] {
            self.command(&format!("{domain}.enable"), json!({}));
        }
        self.command("Performance.enable", json!({"timeDomain": "threadTicks"}));
        let metrics = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.command("Emulation.setDeviceMetricsOverride", metrics);
    }

    /// Sets `prefers-color-scheme`: `light` or `dark`.
    ///
    /// # Panics
    /// If the browser refuses it.
    pub fn prefer(&mut self, scheme: &str) {
        let features = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.command("Emulation.setEmulatedMedia", features);
    }

    /// Loads a page.
    ///
    /// # Panics
    /// If the browser refuses it.
    pub fn load(&mut self, url: &str) {
        let loaded = self.command("Page.navigate", json!({"url": url}));
        assert!(loaded["errorText"].is_null(), "{url}: {loaded}");
    }

    /// Evaluates an expression, waits for its promise, and returns the value.
    ///
    /// # Panics
    /// If it throws.
    #[track_caller]
    pub fn evaluate(&mut self, expression: &str) -> Value {
        let parameters = json!({"expression": expression, "awaitPromise": true, "returnByValue": true});
        let answer = self.command("Runtime.evaluate", parameters);
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {}", answer["exceptionDetails"]);
        answer["result"]["value"].clone()
    }

    /// Evaluates an expression until it is true.
    ///
    /// # Panics
    /// If the expression is still false at the deadline. The message has the text of the page.
    #[track_caller]
    pub fn until(&mut self, expression: &str) {
        let deadline = Instant::now() + WITHIN;
        while self.evaluate(expression) != Value::Bool(true) {
            if Instant::now() > deadline {
                let text = self.evaluate("document.body.innerText");
                panic!("timed out waiting until {expression}; the page shows:\n{text}\n{:#?}", self.problems());
            }
            std::thread::sleep(BETWEEN);
        }
    }

    /// Presses a key and releases it; `text` is the character that it types, if any.
    ///
    /// # Panics
    /// If the browser refuses it.
    pub fn press(&mut self, key: &str, text: &str) {
        let code = match key {
            "Enter" => 13,
            "Escape" => 27,
            "Tab" => 9,
            "Delete" => 46,
            _ => 0,
        };
        for kind in ["keyDown", "keyUp"] {
            let text = if kind == "keyDown" { text } else { "" };
            let event = json!({"type": kind, "key": key, "text": text, "windowsVirtualKeyCode": code});
            self.command("Input.dispatchKeyEvent", event);
        }
    }

    /// A picture of the whole page as PNG, also of what is below the window.
    ///
    /// # Panics
    /// If the browser refuses it.
    pub fn screenshot(&mut self) -> Vec<u8> {
        let taken = self.command("Page.captureScreenshot", json!({"captureBeyondViewport": true}));
        let encoded = taken["data"].as_str().expect("the picture");
        BASE64.decode(encoded.as_bytes()).expect("base64")
    }

    /// Processor time of the main thread since the navigation.
    ///
    /// # Panics
    /// If the browser does not report it.
    pub fn main_thread_time(&mut self) -> Duration {
        let answer = self.command("Performance.getMetrics", json!({}));
        let metrics = answer["metrics"].as_array().expect("metrics");
        let metric = metrics.iter().find(|metric| metric["name"] == "TaskDuration").expect("the duration of tasks");
        Duration::from_secs_f64(metric["value"].as_f64().expect("seconds"))
    }

    /// Console errors and warnings, exceptions, violations of the Content-Security-Policy and failed requests so far.
    pub fn problems(&mut self) -> Vec<String> {
        self.collect();
        let problem = |event: &Value| {
            let parameters = &event["params"];
            let is_problem = match event["method"].as_str()? {
                "Runtime.exceptionThrown" => true,
                // Generic issues are advice, such as on labels of forms.
                "Audits.issueAdded" => parameters["issue"]["code"] != "GenericIssue",
                "Runtime.consoleAPICalled" => matches!(parameters["type"].as_str()?, "error" | "warning" | "assert"),
                "Log.entryAdded" => matches!(parameters["entry"]["level"].as_str()?, "error" | "warning"),
                "Network.loadingFailed" => !parameters["canceled"].as_bool()?,
                _ => false,
            };
            is_problem.then(|| event.to_string())
        };
        self.events.iter().filter_map(problem).collect()
    }

    /// URLs of all requests so far.
    pub fn requests(&mut self) -> Vec<String> {
        self.collect();
        let sent = self.events.iter().filter(|event| event["method"] == "Network.requestWillBeSent");
        sent.filter_map(|event| event["params"]["request"]["url"].as_str().map(str::to_owned)).collect()
    }

    fn collect(&mut self) {
        self.events.extend(self.messages.try_iter());
    }

    #[track_caller]
    fn command(&mut self, method: &str, parameters: Value) -> Value {
        self.last += 1;
        let mut message = json!({"id": self.last, "method": method, "params": parameters});
        if !self.session.is_empty() {
            message["sessionId"] = self.session.clone().into();
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        self.commands.write_all(&bytes).expect("chromium reads commands");
        let deadline = Instant::now() + WITHIN;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let answer = self.messages.recv_timeout(left).unwrap_or_else(|e| panic!("no answer to {method}: {e}"));
            if answer["id"] == self.last {
                assert!(answer["error"].is_null(), "{method}: {}", answer["error"]);
                return answer["result"].clone();
            }
            self.events.push_back(answer);
        }
    }
}

impl Drop for Tab {
    fn drop(&mut self) {
        // Both fail only if the process has already ended.
        if let Err(error) = self.process.kill().and_then(|()| self.process.wait()) {
            eprintln!("chromium does not end: {error}");
        }
        kit::threads::end(self.reader.take());
    }
}
