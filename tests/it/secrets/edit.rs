//! `ccm secrets edit` and `rekey`: a document is edited with decrypted values, and none is stored as it was
//! typed.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use super::Site;
use crate::support::Outcome;

#[test]
fn a_document_is_edited_and_encrypted_for_others() {
    let site = Site::new();
    let other = site.env.ccm(&["secrets", "new", "other.key"]).ok();
    let other = other.trim();
    let file = "site/data/prod.yaml";
    let editor = site.script("editor", "ls -ld \"$(dirname \"$1\")\" \"$1\" >editor.log\nsed -i 's/DEC\\[1,.*\\]!/DEC[1,changed-value]!/' \"$1\"\necho 'added: DEC[new,second-value]!' >>\"$1\"");
    let args = [
        "secrets",
        "edit",
        file,
        "--secret-key",
        "node.key",
        "-r",
        &site.recipient,
    ];
    let edited = site
        .env
        .command(&args)
        .env("EDITOR", &editor)
        .status()
        .unwrap();
    assert!(edited.success());
    let log = std::fs::read_to_string(site.env.path("editor.log")).unwrap();
    assert!(
        log.starts_with("drwx------") && log.contains("\n-rw-------"),
        "{log}"
    );
    let opened = log.split_whitespace().last().unwrap();
    assert!(!Path::new(opened).exists(), "{opened}");
    let text = std::fs::read_to_string(site.env.path(file)).unwrap();
    assert!(
        !text.contains("changed-value") && !text.contains("DEC["),
        "{text}"
    );
    let args = [
        "secrets",
        "rekey",
        file,
        "--secret-key",
        "node.key",
        "-r",
        other,
    ];
    assert_eq!(
        site.env.ccm(&args).ok(),
        "2 values encrypted for 1 recipient\n"
    );
    let _ = site.apply(&[]).error(2);
    let _ = site.apply_with("other.key", &[]);
    let written = std::fs::read_to_string(site.env.path("app.conf")).unwrap();
    assert_eq!(written, "password=changed-value\n");
}

/// Edits a document with an editor that is a shell script, and answers its prompts.
fn edit(site: &mut Site, script: &str, answers: &str) -> Outcome {
    let editor = site.script("editor", script);
    site.env.set("EDITOR", &editor);
    let file = "site/data/prod.yaml";
    let key = ["--secret-key", "node.key", "-r", &site.recipient];
    let args = [&["secrets", "edit", file], &key[..]].concat();
    site.env.ccm_with_input(&args, answers)
}

#[test]
fn an_edited_value_without_its_end_is_not_stored() {
    let mut site = Site::new();
    let file = site.env.path("site/data/prod.yaml");
    let before = std::fs::read_to_string(&file).unwrap();
    let script = "sed -i 's/DEC\\[1,.*\\]!/DEC[1,changed-value]/' \"$1\"";
    let text = edit(&mut site, script, "").error(1);
    assert!(
        text.contains("line 1: DEC[ without ]! at the end"),
        "{text}"
    );
    assert_eq!(std::fs::read_to_string(&file).unwrap(), before);
    let kept = text.split("is kept in ").nth(1).unwrap();
    let kept = kept.split(',').next().unwrap().replace("$DIR/", "");
    let kept = site.env.path(&kept);
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(kept.parent().unwrap()), 0o700);
    assert_eq!(mode(&kept), 0o600);
    let edited = std::fs::read_to_string(kept).unwrap();
    assert!(edited.contains("DEC[1,changed-value]"), "{edited}");
}

#[test]
fn a_document_with_an_error_is_edited_again() {
    let mut site = Site::new();
    let script = "if grep -q changed \"$1\"; then sed -i 's/value\\]/value]!/' \"$1\"; \
        else sed -i 's/DEC\\[1,.*\\]!/DEC[1,changed-value]/' \"$1\"; fi; \
        dirname \"$1\" >editor.log";
    let outcome = edit(&mut site, script, "y\n");
    assert!(outcome.stderr.contains("Edit again? (y/N)"), "{outcome:?}");
    let _ = outcome.ok();
    let private = std::fs::read_to_string(site.env.path("editor.log")).unwrap();
    assert!(!Path::new(private.trim()).exists(), "{private}");
    let _ = site.apply(&[]);
    let written = std::fs::read_to_string(site.env.path("app.conf")).unwrap();
    assert_eq!(written, "password=changed-value\n");
}

#[test]
fn a_document_that_the_editor_did_not_change_is_not_kept_after_an_error() {
    let mut site = Site::new();
    let text = edit(&mut site, "dirname \"$1\" >editor.log; exit 3", "").error(1);
    assert!(text.contains("the editor ended with exit code 3"), "{text}");
    let private = std::fs::read_to_string(site.env.path("editor.log")).unwrap();
    assert!(!Path::new(private.trim()).exists(), "{private}");
}
