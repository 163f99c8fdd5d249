//! The cases that go through every entry point. Each type has one that changes, and one that fails or
//! is refused; those of accounts change nothing, because they run on this machine.

use std::path::Path;

use serde_json::{Value, json};

/// The request, with `$DIR` for a directory of each entry point.
pub(super) struct Case {
    pub(super) name: &'static str,
    /// Prepares the directory.
    pub(super) prepare: fn(&Path),
    /// The resources, as a list of `{type: [{name: properties}]}`.
    resources: Value,
    pub(super) noop: bool,
    /// What `ccm apply` makes of each resource; every other entry point must, too.
    pub(super) outcomes: &'static [&'static str],
}

impl Case {
    pub(super) fn new(
        name: &'static str,
        resources: Value,
        outcomes: &'static [&'static str],
    ) -> Self {
        Self {
            name,
            prepare: |_| {},
            resources,
            noop: false,
            outcomes,
        }
    }

    pub(super) fn prepared(self, prepare: fn(&Path)) -> Self {
        Self { prepare, ..self }
    }

    pub(super) fn noop(self) -> Self {
        Self { noop: true, ..self }
    }

    /// Returns the manifest for a directory.
    pub(super) fn manifest(&self, directory: &str) -> String {
        let document = json!({ "ccm": { "resources": self.resources } });
        document.to_string().replace("$DIR", directory)
    }

    /// Returns type and properties of the one resource, if there is just one that needs no other.
    pub(super) fn single(&self, directory: &str) -> Option<(String, Value)> {
        let [one] = &self.resources.as_array()?[..] else {
            return None;
        };
        let text = one.to_string().replace("$DIR", directory);
        let one: Value = serde_json::from_str(&text).unwrap();
        let (type_name, list) = one.as_object()?.iter().next()?;
        let [resource] = &list.as_array()?[..] else {
            return None;
        };
        let (name, properties) = resource.as_object()?.iter().next()?;
        let needs_others = properties.get("require").or(properties.get("subscribe"));
        if type_name == "apply" || needs_others.is_some() {
            return None;
        }
        let mut properties = properties.clone();
        properties["name"] = name.as_str().into();
        Some((type_name.clone(), properties))
    }
}

pub(super) fn write(path: &Path, text: &str) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

/// A CFEngine package module that keeps its packages as files beside itself.
pub(super) fn with_module(directory: &Path) {
    let script = format!(
        "#!/bin/sh\nstate={0}/packages\nmkdir -p $state\ncase $1 in\n\
         supports-api-version) echo 1;;\n\
         list-installed) cat >/dev/null; for f in $state/*; do test -e $f && \
         printf 'Name=%s\\nVersion=1.0\\nArchitecture=all\\n' ${{f##*/}}; done;;\n\
         get-package-data) while IFS== read -r k v; do test $k = File && \
         printf 'PackageType=repo\\nName=%s\\n' $v; done;;\n\
         repo-install) while IFS== read -r k v; do test $k = Name && touch $state/$v; done;;\n\
         remove) while IFS== read -r k v; do test $k = Name && rm -f $state/$v; done;;\n\
         *) cat >/dev/null;;\nesac\nexit 0\n",
        directory.display()
    );
    let path = directory.join("module");
    std::fs::write(&path, script).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(path, mode).unwrap();
}

pub(super) fn file(content: &str) -> Value {
    json!({"ensure": "present", "content": content, "owner": "root", "group": "root", "mode": "0644"})
}

pub(super) fn cases(url: &str) -> Vec<Case> {
    let touch = |path: &str| json!({"command": format!("/usr/bin/touch {path}")});
    vec![
        Case::new(
            "file changed",
            json!([{"file": [{"$DIR/motd": file("hello\n")}]}]),
            &["changed"],
        ),
        Case::new(
            "file stable",
            json!([{"file": [{"$DIR/motd": file("hello\n")}]}]),
            &["stable"],
        )
        .prepared(|directory| {
            write(&directory.join("motd"), "hello\n");
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o644);
            std::fs::set_permissions(directory.join("motd"), mode).unwrap();
        }),
        Case::new(
            "file that would change",
            json!([{"file": [{"$DIR/motd": file("hello\n")}]}]),
            &["changed"],
        )
        .noop(),
        Case::new(
            "file failed",
            json!([{"file": [{"$DIR/none/motd": file("hello\n")}]}]),
            &["failed"],
        ),
        Case::new(
            "directory",
            json!([{"file": [{"$DIR/srv": {
                "ensure": "directory", "owner": "root", "group": "root", "mode": "0755"
            }}]}]),
            &["changed"],
        ),
        Case::new(
            "file from a template that a command refuses",
            json!([{"file": [{"$DIR/motd": {
                "ensure": "present", "template": "$DIR/motd.j2", "engine": "jinja",
                "validate": "grep -q ^2 %", "owner": "root", "group": "root", "mode": "0644"
            }}]}]),
            &["failed"],
        )
        .prepared(|directory| write(&directory.join("motd.j2"), "{{ 1 + 2 }}\n")),
        Case::new(
            "file from a template",
            json!([{"file": [{"$DIR/motd": {
                "ensure": "present", "template": "$DIR/motd.j2", "engine": "jinja",
                "validate": "grep -q ^3 %", "owner": "root", "group": "root", "mode": "0644"
            }}]}]),
            &["changed"],
        )
        .prepared(|directory| write(&directory.join("motd.j2"), "{{ 1 + 2 }}\n")),
        Case::new(
            "directory from a tree",
            json!([{"file": [{"$DIR/out": {
                "ensure": "directory", "source": "$DIR/in",
                "owner": "root", "group": "root", "mode": "0644"
            }}]}]),
            &["changed"],
        )
        .prepared(|directory| write(&directory.join("in/sub/a.txt"), "one\n")),
        Case::new(
            "user that exists",
            json!([{"user": [{"root": {"ensure": "present", "shell": "/bin/bash"}}]}]),
            &["stable"],
        ),
        Case::new(
            "user that would be created",
            json!([{"user": [{"ccm-nobody-has-this": {
                "ensure": "present", "home": "/srv/x", "password": "$6$a$secret-hash"
            }}]}]),
            &["changed"],
        )
        .noop(),
        Case::new(
            "user with a name that ends its field",
            json!([{"user": [{"a:b": {"ensure": "present"}}]}]),
            &[],
        ),
        Case::new(
            "group that exists",
            json!([{"group": [{"root": {"ensure": "present"}}]}]),
            &["stable"],
        ),
        Case::new(
            "group with a name that ends its field",
            json!([{"group": [{"a:b": {"ensure": "present"}}]}]),
            &[],
        ),
        Case::new(
            "group that would be created",
            json!([{"group": [{"ccm-nobody-has-this": {"ensure": "present"}}]}]),
            &["changed"],
        )
        .noop(),
        Case::new(
            "link changed",
            json!([{"link": [{"$DIR/current": {"ensure": "present", "target": "releases/2"}}]}]),
            &["changed"],
        )
        .prepared(|directory| {
            std::os::unix::fs::symlink("releases/1", directory.join("current")).unwrap();
        }),
        Case::new(
            "link that would be created",
            json!([{"link": [{"$DIR/current": {"ensure": "present", "target": "/a"}}]}]),
            &["changed"],
        )
        .noop(),
        Case::new(
            "link with a file in the way",
            json!([{"link": [{"$DIR/current": {"ensure": "present", "target": "/a"}}]}]),
            &["failed"],
        )
        .prepared(|directory| write(&directory.join("current"), "kept")),
        Case::new(
            "link without a target",
            json!([{"link": [{"$DIR/current": {"ensure": "present"}}]}]),
            &[],
        ),
        Case::new(
            "line changed",
            json!([{"line": [{"$DIR/app.conf": {
                "ensure": "present", "match": "^#?port ", "line": "port 80"
            }}]}]),
            &["changed"],
        )
        .prepared(|directory| write(&directory.join("app.conf"), "#port 1\r\nb")),
        Case::new(
            "block that would be added",
            json!([{"line": [{"hosts": {
                "ensure": "present", "path": "$DIR/app.conf", "block": "a\nb"
            }}]}]),
            &["changed"],
        )
        .prepared(|directory| write(&directory.join("app.conf"), "x\n"))
        .noop(),
        Case::new(
            "line in a file that does not exist",
            json!([{"line": [{"$DIR/app.conf": {"ensure": "present", "line": "a"}}]}]),
            &["failed"],
        ),
        Case::new(
            "exec changed",
            json!([{"exec": [{"/usr/bin/touch $DIR/done": {}}]}]),
            &["changed"],
        ),
        Case::new(
            "exec stable",
            json!([{"exec": [{"/usr/bin/touch $DIR/done": {"creates": "$DIR"}}]}]),
            &["stable"],
        ),
        Case::new(
            "exec failed",
            json!([{"exec": [{"/bin/sh -c 'exit 3'": {}}]}]),
            &["failed"],
        ),
        Case::new(
            "exec skipped by its control",
            json!([{"exec": [{"/usr/bin/touch $DIR/done": {"control": {"if": "1 == 2"}}}]}]),
            &["skipped"],
        ),
        Case::new(
            "sensitive exec that can't be started",
            json!([{"exec": [{"login": {"command": "/no/hunter2 hunter3", "sensitive": true}}]}]),
            &["failed"],
        ),
        Case::new(
            "archive",
            json!([{"archive": [{"$DIR/app.tar.gz": {
                "url": url, "ensure": "present", "extract_parent": "$DIR/out",
                "owner": "root", "group": "root", "creates": "$DIR/out/app/README"
            }}]}]),
            &["changed"],
        ),
        Case::new(
            "scaffold",
            json!([{"scaffold": [{"$DIR/out": {"ensure": "present", "source": "$DIR/in", "engine": "jet"}}]}]),
            &["changed"],
        )
        .prepared(|directory| write(&directory.join("in/a.txt"), "one\n")),
        Case::new(
            "package by the module of a path",
            json!([{"package": [{"zsh": {"ensure": "present", "provider": "cfengine/$DIR/module"}}]}]),
            &["changed"],
        )
        .prepared(with_module),
        Case::new(
            "service without a service manager",
            json!([{"service": [{"no-such-unit": {"ensure": "running", "provider": "launchd"}}]}]),
            &[],
        ),
        Case::new(
            "health check that is critical",
            json!([{"file": [{"$DIR/motd": {
                "ensure": "present", "content": "x", "owner": "root", "group": "root", "mode": "0644",
                "health_checks": [{"command": "/bin/sh -c 'echo broken; exit 2'", "name": "probe", "tries": 1}]
            }}]}]),
            &["failed"],
        ),
        Case::new(
            "require that is met and one that is not",
            json!([{"exec": [
                {"bad": {"command": "/bin/false"}},
                {"good": {"command": "/bin/true"}},
                {"after bad": {"command": "/usr/bin/touch $DIR/no", "require": ["exec#bad"]}},
                {"after good": {"command": "/usr/bin/touch $DIR/yes", "require": ["exec#good"]}},
            ]}]),
            &["failed", "changed", "unmet", "changed"],
        ),
        Case::new(
            "subscribe",
            json!([
                {"file": [{"$DIR/conf": file("x\n")}]},
                {"exec": [{"reload": {
                    "command": touch("$DIR/reloaded")["command"], "refreshonly": true,
                    "subscribe": ["file#$DIR/conf"]
                }}]},
            ]),
            &["changed", "refreshed"],
        ),
        Case::new(
            "nested manifest",
            json!([{"apply": [{"$DIR/child.yaml": {}}]}]),
            &["changed", "changed"],
        )
        .prepared(|directory| {
            let child = json!({"ccm": {"resources": [
                {"file": [{format!("{}/inner", directory.display()): file("inner\n")}]}
            ]}});
            write(&directory.join("child.yaml"), &child.to_string());
        }),
        Case::new(
            "property that does not exist",
            json!([{"file": [{"$DIR/motd": {"contents": "x"}}]}]),
            &[],
        ),
        Case::new(
            "file without ensure",
            json!([{"file": [{"$DIR/motd": {"content": "x"}}]}]),
            &[],
        ),
        Case::new(
            "template that does not exist",
            json!([{"exec": [{"/bin/echo": {"environment": ["A={{ noSuch() }}"]}}]}]),
            &[],
        ),
    ]
}
