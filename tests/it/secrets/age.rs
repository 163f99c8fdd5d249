//! The file format of age, both ways with another implementation: pyrage, which has the crate `age`.

use std::io::Write as _;
use std::process::{Command, Stdio};

use super::Site;
use crate::support::nats::tool;

/// Runs `tests/data/secrets/age.py` and returns what it prints.
fn pyrage(action: &str, argument: &str, input: &str) -> String {
    let mut child = Command::new(tool("python3"))
        .arg(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/data/secrets/age.py"
        ))
        .args([action, argument])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input.as_bytes()).unwrap();
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{action}: {stderr}");
    String::from_utf8(output.stdout).unwrap()
}

/// Texts around the sizes where the format begins a new chunk.
fn texts() -> Vec<String> {
    let sizes = [0, 1, 65_535, 65_536, 65_537, 131_072];
    let mut texts: Vec<String> = sizes.map(|size| "x".repeat(size)).into();
    texts.push("first line\nJ\u{f6}rg\n".into());
    texts
}

#[test]
fn values_of_ccm_are_decrypted_by_the_crate_age() {
    let site = Site::new();
    for text in texts() {
        // One line break at the end belongs to the input, not to the value.
        let sealed = site.seal(&format!("{text}\n"));
        let encoded = sealed.strip_prefix("ENC[age,").unwrap();
        let encoded = encoded.strip_suffix(']').unwrap();
        assert_eq!(pyrage("decrypt", &site.env.at("node.key"), encoded), text);
    }
}

#[test]
fn values_of_the_crate_age_are_decrypted_by_ccm() {
    let site = Site::new();
    let target = site.env.at("out");
    for text in texts() {
        let encoded = pyrage("encrypt", &site.recipient, &text);
        let file = "ensure: present, owner: root, group: root, mode: '0600'";
        site.env.write(
            "m.yaml",
            format!(
                "data: {{p: 'ENC[age,{encoded}]'}}\nccm: {{resources: [{{file: {{name: {target}, {file}, content: '{{{{ Data.p }}}}'}}}}]}}\n"
            ),
        );
        site.env
            .ccm(&["apply", "m.yaml", "--secret-key", "node.key"])
            .ok();
        assert_eq!(site.env.read("out"), text);
    }
}
