use std::os::unix::fs::symlink;
use std::process::Command;

use policy::{Change, Kind, Object};
use tempfile::TempDir;

use super::*;

const POD: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: web, namespace: shop}\n";

/// The pod in a version of its own.
fn pod_of_version(version: &str) -> String {
    format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: web, namespace: shop, labels: {{version: '{version}'}}}}\n")
}

fn pods(files: &Files<Object>) -> Vec<Object> {
    let of_pods = |change| match change {
        Change::Replace(Kind::Pod, pods) => pods,
        _ => vec![],
    };
    files.folder().changes().into_iter().flat_map(of_pods).collect()
}

/// The versions of the pods.
fn versions(files: &Files<Object>) -> Vec<String> {
    let version = |object: Object| match object {
        Object::Pod(pod) => pod.labels.iter().map(|(_, value)| value.to_string()).collect(),
        _ => String::new(),
    };
    pods(files).into_iter().map(version).collect()
}

fn problems(files: &Files<Object>) -> Vec<String> {
    files.folder().problems.iter().map(Problem::to_string).collect()
}

fn make_pipe(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

/// A folder whose walks call a function after they have listed the folder, and before they read its files.
struct ChangingFolder {
    place: TempDir,
    files: Files<Object>,
}

impl ChangingFolder {
    /// The folder has the files, and `a.yaml`: a symlink to a file elsewhere. The walk visits the target of a symlink
    /// after it has listed the folder.
    fn of(files: &[(&str, &str)]) -> ChangingFolder {
        let place = tempfile::tempdir().unwrap();
        let [folder, elsewhere] = ["folder", "elsewhere"].map(|name| place.path().join(name));
        for path in [&folder, &elsewhere] {
            fs::create_dir(path).unwrap();
        }
        fs::write(elsewhere.join("target.yaml"), "# nothing").unwrap();
        symlink(elsewhere.join("target.yaml"), folder.join("a.yaml")).unwrap();
        let mut changing = ChangingFolder { place, files: Files::new(&folder) };
        files.iter().for_each(|(name, text)| changing.write(name, text));
        changing.files.scan(&mut |_| {}).unwrap();
        changing
    }

    fn path(&self, name: &str) -> PathBuf {
        self.place.path().join("folder").join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    /// Scans once; the function gets the number of the walk, from one. Returns the number of walks.
    fn scan(&mut self, mut change: impl FnMut(usize)) -> usize {
        let mut walks = 0;
        self.files
            .scan(&mut |visited| {
                if visited.ends_with("elsewhere") {
                    walks += 1;
                    change(walks);
                }
            })
            .unwrap();
        walks
    }

    /// Scans a folder in which another file changes during each walk.
    fn scan_without_rest(&mut self, mut change: impl FnMut(usize)) {
        let other = self.path("other.yaml");
        let walks = self.scan(|walk| {
            fs::write(&other, format!("# {}", "x".repeat(walk))).unwrap();
            change(walk);
        });
        assert!(walks > ATTEMPTS, "{walks} walks");
        assert!(
            problems(&self.files).iter().any(|p| p.contains("changes continuously")),
            "{:?}",
            problems(&self.files)
        );
    }

    /// Scans a folder that does not change.
    fn scan_at_rest(&mut self) {
        assert_eq!(self.scan(|_| {}), 2);
    }
}

#[test]
fn file_renamed_during_scan_is_not_missing() {
    let mut folder = ChangingFolder::of(&[("z.yaml", POD)]);
    let [from, to] = ["z.yaml", "b.yaml"].map(|name| folder.path(name));
    let walks = folder.scan(|walk| {
        if walk == 1 {
            fs::rename(&from, &to).unwrap();
        }
    });
    assert_eq!(pods(&folder.files).len(), 1);
    assert!(walks > 2, "the scan is repeated");
    assert_eq!(problems(&folder.files), [""; 0]);
}

#[test]
fn deleted_file_is_removed() {
    let mut folder = ChangingFolder::of(&[("z.yaml", POD)]);
    fs::remove_file(folder.path("z.yaml")).unwrap();
    folder.scan_at_rest();
    assert_eq!(pods(&folder.files), []);
}

#[test]
fn unstable_scan_removes_file_no_walk_found() {
    let mut folder = ChangingFolder::of(&[("z.yaml", POD)]);
    fs::remove_file(folder.path("z.yaml")).unwrap();
    folder.scan_without_rest(|_| {});
    assert_eq!(pods(&folder.files), []);
    folder.scan_at_rest();
    assert_eq!(problems(&folder.files), [""; 0]);
}

#[test]
fn unstable_scan_removes_object_no_walk_found() {
    let mut folder = ChangingFolder::of(&[("z.yaml", POD)]);
    folder.write("z.yaml", "# nothing");
    folder.scan_without_rest(|_| {});
    assert_eq!(pods(&folder.files), []);
}

#[test]
fn object_missed_by_last_walk_is_kept() {
    let mut folder = ChangingFolder::of(&[("z.yaml", &pod_of_version("0"))]);
    let [from, to] = ["z.yaml", "b.yaml"].map(|name| folder.path(name));
    folder.scan_without_rest(|walk| {
        if walk < ATTEMPTS {
            fs::write(&from, pod_of_version(&walk.to_string())).unwrap();
        } else if walk == ATTEMPTS {
            // The walk has not listed the new file, and reads the old one after the change.
            fs::write(&to, pod_of_version("moved")).unwrap();
            fs::write(&from, "# nothing").unwrap();
        }
    });
    assert_eq!(versions(&folder.files), [(ATTEMPTS - 1).to_string()]);
    folder.scan_at_rest();
    assert_eq!(versions(&folder.files), ["moved"]);
    fs::remove_file(&to).unwrap();
    folder.scan_at_rest();
    assert_eq!(pods(&folder.files), []);
}

#[test]
fn file_missed_by_last_walk_is_kept() {
    let mut folder = ChangingFolder::of(&[("z.yaml", &pod_of_version("0"))]);
    let [from, to] = ["z.yaml", "b.yaml"].map(|name| folder.path(name));
    folder.scan_without_rest(|walk| {
        if walk == ATTEMPTS {
            fs::rename(&from, &to).unwrap();
        }
    });
    assert_eq!(versions(&folder.files), ["0"]);
    fs::remove_file(&to).unwrap();
    folder.scan_at_rest();
    assert_eq!(pods(&folder.files), []);
}

#[test]
fn moved_object_is_not_a_duplicate() {
    let mut folder = ChangingFolder::of(&[("b.yaml", "# nothing"), ("z.yaml", &pod_of_version("0"))]);
    let paths = ["b.yaml", "z.yaml"].map(|name| folder.path(name));
    folder.scan_without_rest(|walk| {
        fs::write(&paths[walk % 2], pod_of_version(&walk.to_string())).unwrap();
        fs::write(&paths[(walk + 1) % 2], "# nothing").unwrap();
    });
    // The walk that checks the last attempt changes the files again, and does not read them.
    assert_eq!(versions(&folder.files), [ATTEMPTS.to_string()]);
    assert_eq!(problems(&folder.files).len(), 1, "{:?}", problems(&folder.files));
    // The last attempt finds the object in both files, as between the two writes.
    folder.scan_without_rest(|_| paths.iter().for_each(|path| fs::write(path, pod_of_version("both")).unwrap()));
    assert_eq!(versions(&folder.files), ["both"]);
    assert_eq!(problems(&folder.files).len(), 1, "{:?}", problems(&folder.files));
    folder.scan_at_rest();
    let problems = problems(&folder.files);
    assert!(matches!(&problems[..], [problem] if problem.contains("duplicate Pod shop/web")), "{problems:?}");
}

#[test]
fn invalid_file_in_some_walk_keeps_objects() {
    let mut folder = ChangingFolder::of(&[("z.yaml", &pod_of_version("0"))]);
    let path = folder.path("z.yaml");
    folder.scan_without_rest(|walk| match walk {
        1 => fs::write(&path, "kind: [").unwrap(),
        ATTEMPTS => fs::remove_file(&path).unwrap(),
        _ => {}
    });
    assert_eq!(versions(&folder.files), ["0"]);
    // The file's own problem would name a file that does not exist.
    assert_eq!(problems(&folder.files).len(), 1, "{:?}", problems(&folder.files));
    folder.scan_at_rest();
    assert_eq!(pods(&folder.files), []);
}

#[test]
fn file_replaced_by_pipe_during_scan_blocks_nothing() {
    let mut folder = ChangingFolder::of(&[("0.yaml", POD)]);
    let path = folder.path("0.yaml");
    folder.scan(|walk| {
        if walk == 1 {
            fs::remove_file(&path).unwrap();
            make_pipe(&path);
        }
    });
    let problems = problems(&folder.files);
    assert!(problems[0].starts_with("0.yaml: not a regular file"), "{problems:?}");
    assert_eq!(pods(&folder.files).len(), 1);
}
