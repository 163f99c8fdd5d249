//! Tests that hold for every type: provider selection, and rejection of states of another type. Also what
//! the tests of several types share.

use chrono::DateTime;

use super::package::scripted_host::ScriptedHost;
use super::*;
use crate::model::resource::decode;
use crate::model::state::{
    ApplyDetail, ArchiveMetadata, Detail, ExecDetail, FileMetadata, GroupMetadata, LineMetadata,
    LinkMetadata, PackageMetadata, ScaffoldMetadata, ServiceMetadata, UserMetadata,
};
use crate::model::{TypeName, document};

fn resource(type_name: TypeName) -> Resource {
    let properties = match type_name {
        TypeName::Apply => Properties::Apply(Apply::default()),
        TypeName::Archive => Properties::Archive(Archive::default()),
        TypeName::Exec => Properties::Exec(Exec::default()),
        TypeName::File => Properties::File(File::default()),
        TypeName::Group => Properties::Group(Group::default()),
        TypeName::Line => Properties::Line(Line::default()),
        TypeName::Link => Properties::Link(Link::default()),
        TypeName::Package => Properties::Package(Package::default()),
        TypeName::Scaffold => Properties::Scaffold(Scaffold::default()),
        TypeName::Service => Properties::Service(Service::default()),
        TypeName::User => Properties::User(User::default()),
    };
    Resource::new("/x", "present", properties)
}

fn state(type_name: TypeName) -> State {
    let detail = match type_name {
        TypeName::Apply => Detail::Apply(ApplyDetail::default()),
        TypeName::Archive => Detail::Archive {
            metadata: ArchiveMetadata::default(),
        },
        TypeName::Exec => Detail::Exec(ExecDetail::default()),
        TypeName::File => Detail::File {
            metadata: FileMetadata::default(),
        },
        TypeName::Group => Detail::Group {
            metadata: GroupMetadata::default(),
        },
        TypeName::Line => Detail::Line {
            metadata: LineMetadata::default(),
        },
        TypeName::Link => Detail::Link {
            metadata: LinkMetadata::default(),
        },
        TypeName::Package => Detail::Package {
            metadata: PackageMetadata::default(),
        },
        TypeName::Scaffold => Detail::Scaffold {
            metadata: ScaffoldMetadata::default(),
        },
        TypeName::User => Detail::User {
            metadata: UserMetadata::default(),
        },
        TypeName::Service => Detail::Service {
            metadata: ServiceMetadata::default(),
        },
    };
    State::new(DateTime::UNIX_EPOCH, "/x", "present", detail)
}

fn scripted() -> ScriptedHost {
    let scripted = ScriptedHost::new();
    scripted.install_apt();
    scripted.runner.install("systemctl");
    scripted.runner.install("useradd");
    scripted
}

/// Returns the resource that a case declares.
pub(super) fn declared(
    type_name: TypeName,
    properties: &serde_json::Value,
) -> Result<Resource, String> {
    let node = document::parse(&properties.to_string()).unwrap();
    let mut declared = decode::read_resources(type_name, &node).unwrap();
    let mut resource = declared.remove(0).resource;
    resource.complete().map_err(|err| err.to_string())?;
    Ok(resource)
}

/// Performs the plan for a state and returns its noop message.
pub(super) fn plan_and_change(
    managed: &ManagedResource<'_>,
    before: &State,
    host: Host<'_>,
) -> Result<String, ResourceError> {
    let planned = managed.plan(before, false, host)?;
    planned.change(host, &|_| {})?;
    Ok(planned.plan().message.clone())
}

#[test]
fn every_type_has_the_provider_that_events_name() {
    let scripted = scripted();
    for (type_name, provider) in TypeName::ALL.into_iter().zip([
        "ccmmanifest",
        "http",
        "posix",
        "posix",
        "shadow",
        "posix",
        "posix",
        "apt",
        "choria",
        "systemd",
        "shadow",
    ]) {
        let mut resource = resource(type_name);
        let name_of = |resource: &Resource| {
            let selected = select_provider(resource, scripted.host())?;
            Ok::<_, ProviderError>(selected.provider_name().to_owned())
        };
        assert_eq!(name_of(&resource).unwrap(), provider, "{type_name}");
        resource.common.provider = provider.into();
        assert_eq!(name_of(&resource).unwrap(), provider, "{type_name}");
        resource.common.provider = "other".into();
        let error = name_of(&resource).unwrap_err();
        assert_eq!(error, ProviderError::NotFound, "{type_name}");
    }
}

#[test]
fn no_type_plans_from_the_state_of_another() {
    let scripted = scripted();
    for wanted in TypeName::ALL {
        let resource = resource(wanted);
        let managed = match select_provider(&resource, scripted.host()).unwrap() {
            SelectedProvider::Managed(managed) => managed,
            SelectedProvider::Manifest(_) => continue,
        };
        for found in TypeName::ALL.into_iter().filter(|found| *found != wanted) {
            let state = state(found);
            let error = managed.plan(&state, true, scripted.host()).unwrap_err();
            assert_eq!(
                error.to_string(),
                format!("expected the state of a resource of type {wanted}, got {found}")
            );
        }
    }
    assert!(scripted.runner.calls().is_empty());
}
