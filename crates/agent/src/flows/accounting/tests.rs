use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use super::*;
use crate::netns::in_new_namespace;

fn of(run_dir: &Path) -> ConntrackSettings {
    ConntrackSettings::of_node(run_dir)
}

/// Values of the settings of counters and of timestamps.
fn values(accounting: &ConntrackSettings) -> [u32; 2] {
    ConntrackSetting::ALL.map(|setting| accounting.value(setting).unwrap())
}

/// Runs the work in a network namespace in which both settings have these values.
fn in_namespace_with(before: [u32; 2], work: impl FnOnce(&ConntrackSettings) + Send) {
    in_new_namespace(|| {
        let folder = tempfile::tempdir().unwrap();
        let accounting = of(folder.path());
        for (setting, value) in ConntrackSetting::ALL.into_iter().zip(before) {
            accounting.set(setting, value).unwrap();
        }
        work(&accounting);
    });
}

/// Lasts as long as the thread.
fn make_sysctls_read_only() {
    unshare(CloneFlags::CLONE_NEWNS).unwrap();
    let none: Option<&str> = None;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
    mount(Some("/proc/sys"), "/proc/sys", none, MsFlags::MS_BIND, none).unwrap();
    mount(none, "/proc/sys", none, MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY, none).unwrap();
}

#[test]
fn settings_that_others_switch_off_are_renewed() {
    in_namespace_with([0, 1], |accounting| {
        assert_eq!(accounting.enable(), [] as [String; 0]);
        assert_eq!(accounting.renew(&[]), [] as [String; 0]);
        for setting in ConntrackSetting::ALL {
            accounting.set(setting, 0).unwrap();
        }
        assert_eq!(accounting.off(), ConntrackSetting::ALL);
        // Timestamps were on before the agent started, so they are not the agent's.
        let problems = accounting.renew(&[]);
        assert_eq!(values(accounting), [1, 0]);
        assert!(problems.len() == 1 && problems[0].contains("nf_conntrack_timestamp is off"), "{problems:?}");
        assert_eq!(accounting.renew(&[ConntrackSetting::Timestamps]), [] as [String; 0], "it was off at the start");
    });
}

#[test]
fn settings_are_set_and_restored() {
    in_namespace_with([0, 0], |accounting| {
        assert_eq!(accounting.enable(), [] as [String; 0]);
        assert_eq!((values(accounting), accounting.is_remembered()), ([1, 1], true));
        let restored = accounting.restore().unwrap();
        assert_eq!(restored, ["net.netfilter.nf_conntrack_acct = 0", "net.netfilter.nf_conntrack_timestamp = 0"]);
        assert_eq!((values(accounting), accounting.is_remembered()), ([0, 0], false));
        assert_eq!(accounting.restore().unwrap(), [] as [String; 0]);
    });
}

#[test]
fn settings_of_the_operator_are_never_restored() {
    in_namespace_with([1, 0], |accounting| {
        assert_eq!(accounting.enable(), [] as [String; 0]);
        accounting.restore().unwrap();
        assert_eq!(values(accounting), [1, 0]);
    });
    in_namespace_with([1, 1], |accounting| {
        accounting.enable();
        assert!(!accounting.is_remembered());
    });
}

#[test]
fn restart_keeps_the_first_remembered_value() {
    in_namespace_with([0, 0], |accounting| {
        accounting.enable();
        // The first restart finds the agent's values; the second finds that another program has reset one.
        accounting.enable();
        accounting.set(ConntrackSetting::Counters, 0).unwrap();
        accounting.enable();
        assert_eq!(values(accounting), [1, 1]);
        accounting.restore().unwrap();
        assert_eq!(values(accounting), [0, 0]);
    });
}

#[test]
fn value_of_another_program_stays() {
    in_new_namespace(|| {
        let (root, run_dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let accounting = ConntrackSettings { root: root.path().into(), run_dir: run_dir.path().into() };
        std::fs::create_dir_all(root.path().join("proc/sys/net/netfilter")).unwrap();
        for setting in ConntrackSetting::ALL {
            std::fs::write(accounting.setting_path(setting), "0\n").unwrap();
        }
        assert_eq!(accounting.enable(), [] as [String; 0]);
        // A future kernel may add values.
        std::fs::write(accounting.setting_path(ConntrackSetting::Counters), "2\n").unwrap();
        std::fs::remove_file(accounting.setting_path(ConntrackSetting::Timestamps)).unwrap();
        assert_eq!(accounting.restore().unwrap(), [] as [String; 0]);
        assert_eq!((accounting.value(ConntrackSetting::Counters).unwrap(), accounting.is_remembered()), (2, false));
    });
}

#[test]
fn read_only_settings_are_named_and_forgotten() {
    in_namespace_with([1, 0], |accounting| {
        make_sysctls_read_only();
        let missing = accounting.enable();
        let expected = "net.netfilter.nf_conntrack_timestamp is off and cannot be set (Read-only file system (os error \
                        30)): run sysctl -w net.netfilter.nf_conntrack_timestamp=1 on the node";
        assert_eq!(missing, [expected]);
        assert!(!accounting.is_remembered(), "an operator's later value would be taken for ours");
    });
}

#[test]
fn failed_restore_stays_remembered() {
    in_namespace_with([0, 0], |accounting| {
        accounting.enable();
        make_sysctls_read_only();
        let error = accounting.restore().unwrap_err().to_string();
        assert!(error.contains("run sysctl -w net.netfilter.nf_conntrack_acct=0 on the node"), "{error}");
        assert_eq!((values(accounting), accounting.is_remembered()), ([1, 1], true));
    });
}

#[test]
fn nothing_is_set_that_cannot_be_remembered() {
    in_namespace_with([0, 0], |accounting| {
        let nowhere = ConntrackSettings { run_dir: accounting.run_dir.join("missing"), ..accounting.clone() };
        let missing = nowhere.enable();
        assert!(missing.len() == 2 && missing[0].contains("cannot write"), "{missing:?}");
        std::fs::write(accounting.file(), r#"{"nf_conntrack_acct""#).unwrap();
        let missing = accounting.enable();
        assert!(missing.len() == 2 && missing[0].contains("is damaged"), "{missing:?}");
        assert!(accounting.restore().is_err());
        assert_eq!(values(accounting), [0, 0]);
    });
}

#[test]
fn missing_settings_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let accounting = ConntrackSettings { root: folder.path().into(), run_dir: folder.path().into() };
    let missing = accounting.enable();
    assert!(
        missing.len() == 2 && missing[0].starts_with("net.netfilter.nf_conntrack_acct does not exist"),
        "{missing:?}"
    );
}

#[test]
fn events_switched_off_are_reported_and_left() {
    in_namespace_with([1, 1], |accounting| {
        assert!(accounting.has_times());
        let path = Path::new("/proc/sys").join(EVENTS);
        std::fs::write(&path, "0").unwrap();
        let problems = accounting.enable();
        assert!(problems.len() == 1 && problems[0].contains("sysctl -w net.netfilter.nf_conntrack_events=2"));
        assert_eq!(std::fs::read_to_string(&path).unwrap().trim(), "0");
        accounting.set(ConntrackSetting::Timestamps, 0).unwrap();
        assert!(!accounting.has_times());
    });
}
