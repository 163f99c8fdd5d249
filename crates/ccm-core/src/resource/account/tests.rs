//! Data-driven cases of users and groups from `tests/data/provider/account`: the account files below,
//! properties in, exact commands and inputs out. The user `root` and the group `daemon` are not in these
//! files, but the machine knows them, as it knows those of LDAP.

use serde::Deserialize;

use crate::model::TypeName;
use crate::resource::package::scripted_host::{ScriptedCommand, ScriptedHost, run_cases};
use crate::resource::tests::{declared, plan_and_change};
use crate::resource::{SelectedProvider, select_provider};
use crate::system::Accounts;

const PASSWD: &str = "app:x:1001:1002:App:/srv/app:/bin/sh\nstuck:x:1003:1003::/:/bin/sh\n";
const SHADOW: &str =
    "app:$6$salt$hash:19000:0:99999:7::20000:\nstuck:!$6$salt$hash:19000:0:99999:7:::\n";
const GROUP: &str = "app:x:1002:\nwww:x:33:app\nadm:x:4:app\ngames:x:60:\n";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    name: String,
    #[serde(rename = "type")]
    type_name: TypeName,
    properties: serde_json::Value,
    /// The noop message; nothing for an empty plan.
    #[serde(default)]
    message: String,
    commands: Vec<ScriptedCommand>,
    #[serde(default)]
    error: String,
}

fn run(case: &Case) -> Result<(), String> {
    let directory = tempfile::tempdir().unwrap();
    for (name, text) in [("passwd", PASSWD), ("shadow", SHADOW), ("group", GROUP)] {
        std::fs::write(directory.path().join(name), text).unwrap();
    }
    let mut test = ScriptedHost::new();
    test.accounts = Accounts::of_directory(directory.path().into());
    test.runner.install("useradd");
    for command in &case.commands {
        test.expect(command);
    }
    let resource = declared(case.type_name, &case.properties)?;
    let Ok(SelectedProvider::Managed(managed)) = select_provider(&resource, test.host()) else {
        return Err("no provider".into());
    };
    let host = test.host();
    let before = managed.inspect(host).map_err(|err| err.to_string())?;
    let (message, error) = match plan_and_change(&managed, &before, host) {
        Ok(message) => (message, String::new()),
        Err(err) => (case.message.clone(), err.to_string()),
    };
    if (message.as_str(), error.as_str()) != (case.message.as_str(), case.error.as_str()) {
        return Err(format!("message {message:?}, error {error:?}"));
    }
    let shown = format!("{before:?}");
    if shown.contains("hash") {
        return Err(format!("the state shows a hash: {shown}"));
    }
    test.check_calls(&case.commands)
}

#[test]
fn users_and_groups_follow_the_table() {
    let count = run_cases("account", |case: &Case| (case.name.clone(), run(case)));
    assert!(count > 30, "{count}");
}
