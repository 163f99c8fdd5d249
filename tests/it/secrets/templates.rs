//! Templates that are rendered when a file or a scaffold is applied: what they render of a secret is shown
//! nowhere, however it is encoded.

use super::Site;

/// A site whose secret has four characters, too few for a removal of its text from output, with templates
/// that show it as it is and encoded.
struct TemplateSite {
    site: Site,
    sealed: String,
}

impl TemplateSite {
    const SECRET: &str = "q~7#";
    const ENCODED: &str = "cX43Iw==";

    fn new() -> Self {
        let site = Site::new();
        let sealed = site.seal(Self::SECRET);
        site.env.write(
            "templates/app.conf",
            "password=[[ Data.p ]] [[ template(\"{{ toBase64(Data.p) }}\") ]]\n",
        );
        site.env
            .write("templates/port.conf", "port=[[ Data.port ]]\n");
        Self { site, sealed }
    }

    /// Applies one resource with all that shows its content, and returns what was shown.
    fn apply(&self, resource: &str, flags: &[&str]) -> String {
        self.site.env.write(
            "template.yaml",
            format!(
                "data: {{p: '{}', port: 8080}}\nccm: {{resources: [{{{resource}}}]}}\n",
                self.sealed
            ),
        );
        let args = ["apply", "template.yaml", "--secret-key", "node.key"];
        let outcome = self.site.env.ccm(&[&args[..], flags].concat());
        format!("{}{}", outcome.stdout, outcome.stderr)
    }

    fn file(&self, template: &str, more: &str) -> String {
        let target = self.site.env.path("app.conf").display().to_string();
        format!(
            "file: {{name: {target}, ensure: present, owner: root, group: root, mode: '0600', template: templates/{template}, engine: jet{more}}}"
        )
    }

    fn has_no_secret(text: &str) {
        assert!(!text.contains(Self::SECRET), "{text}");
        assert!(!text.contains(Self::ENCODED), "{text}");
    }

    fn check_written(&self, name: &str) {
        let written = std::fs::read_to_string(self.site.env.path(name)).unwrap();
        let (secret, encoded) = (Self::SECRET, Self::ENCODED);
        assert_eq!(written, format!("password={secret} {encoded}\n"));
    }
}

#[test]
fn the_diff_of_a_file_template_shows_no_secret() {
    let site = TemplateSite::new();
    let resource = site.file("app.conf", "");
    let shown = site.apply(&resource, &["--noop", "--diff", "--debug"]);
    TemplateSite::has_no_secret(&shown);
    assert!(shown.contains("differs (sensitive)"), "{shown}");
    TemplateSite::has_no_secret(&site.apply(&resource, &["--diff", "--debug"]));
    site.check_written("app.conf");
}

#[test]
fn the_output_of_a_validation_of_a_file_template_shows_no_secret() {
    let site = TemplateSite::new();
    let refuse = site.site.script("refuse", "cat \"$1\"; exit 1");
    let validate = format!(", validate: '{refuse} %'");
    let shown = site.apply(&site.file("app.conf", &validate), &["--json"]);
    assert!(shown.contains("exit code 1"), "{shown}");
    TemplateSite::has_no_secret(&shown);
}

#[test]
fn the_event_of_a_file_template_has_no_checksum_of_a_secret() {
    let site = TemplateSite::new();
    let shown = site.apply(&site.file("app.conf", ""), &["--json"]);
    site.check_written("app.conf");
    let sum = std::process::Command::new("sha256sum")
        .arg(site.site.env.path("app.conf"))
        .output()
        .unwrap();
    let sum = String::from_utf8(sum.stdout).unwrap();
    let sum = sum.split_whitespace().next().unwrap();
    assert!(!shown.contains(sum), "{shown}");
}

#[test]
fn an_error_of_a_file_template_does_not_quote_a_secret() {
    let site = TemplateSite::new();
    site.site
        .env
        .write("templates/bad.conf", "[[ upper(Data.p, 1) ]]\n");
    let shown = site.apply(&site.file("bad.conf", ""), &["--debug"]);
    TemplateSite::has_no_secret(&shown);
}

#[test]
fn a_template_without_a_secret_is_shown() {
    let site = TemplateSite::new();
    let shown = site.apply(&site.file("port.conf", ""), &["--noop", "--diff"]);
    assert!(shown.contains("+port=8080"), "{shown}");
}

#[test]
fn a_scaffold_with_empty_data_shows_no_secret() {
    let site = TemplateSite::new();
    let target = site.site.env.path("out").display().to_string();
    for data in ["", ", data: {}"] {
        let resource = format!(
            "scaffold: {{name: {target}, ensure: present, source: templates, engine: jet{data}}}"
        );
        let shown = site.apply(&resource, &["--noop", "--diff", "--debug"]);
        TemplateSite::has_no_secret(&shown);
        assert!(shown.contains("differs (sensitive)"), "{shown}");
    }
}

#[test]
fn a_scaffold_whose_file_names_depend_on_a_secret_is_refused() {
    let site = TemplateSite::new();
    site.site
        .env
        .write("named/list", "[[ write(Data.p, \"x\") ]]\n");
    let target = site.site.env.path("out").display().to_string();
    let resource =
        format!("scaffold: {{name: {target}, ensure: present, source: named, engine: jet}}");
    let shown = site.apply(&resource, &["--json"]);
    TemplateSite::has_no_secret(&shown);
    assert!(shown.contains("depend on a secret"), "{shown}");
    assert!(!site.site.env.path("out").exists());
}
