package deploytest_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	apps "k8s.io/api/apps/v1"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

func TestKustomizeBaseRunsDaemons(t *testing.T) {
	t.Parallel()
	kustomize(t, kustomizeDir).check(t)
}

func TestKustomizeOverlayRunsDaemons(t *testing.T) {
	t.Parallel()
	r := kustomize(t, "testdata/overlay")
	r.check(t)
	if d := only[*apps.Deployment](t, r); *d.Spec.Replicas != 5 || container(r).Image != "example.com/penstock:1.0" {
		t.Errorf("the overlay has no effect: %d replicas of %s", *d.Spec.Replicas, container(r).Image)
	}
}

func kustomize(t *testing.T, dir string) release {
	t.Helper()
	objects, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		t.Fatal(err)
	}
	text, err := objects.AsYaml()
	if err != nil {
		t.Fatal(err)
	}
	r, err := decodeRelease(string(text))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Of the base, only the number in kustomization.yaml is changed.
func TestKustomizeBaseNodesFollowReplicas(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(kustomizeDir)); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "kustomization.yaml")
	writeFile(t, file, strings.Replace(readText(t, file), "count: 3", "count: 7", 1))
	r := kustomize(t, dir)
	d := only[*apps.Deployment](t, r)
	if *d.Spec.Replicas != 7 {
		t.Errorf("%d replicas, want 7", *d.Spec.Replicas)
	}
	checkPod(t, settingsOf(t, container(r).Args, environ(container(r).Env)), d)
}
