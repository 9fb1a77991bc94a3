package membership

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// A data folder has one process at a time, and belongs to one node.
func TestDirectoryBelongsToOne(t *testing.T) {
	dir := t.TempDir()
	mustOpen := func() *directory {
		t.Helper()
		d, err := openDirectory(vfs.Default, dir, "n1")
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	refused := func(name, why string) {
		t.Helper()
		if d, err := openDirectory(vfs.Default, dir, name); err == nil || !strings.Contains(err.Error(), why) || !strings.Contains(err.Error(), dir) {
			t.Fatalf("%v, %v: want %q", d, err, why)
		}
	}
	d := mustOpen()
	refused("n1", fmt.Sprintf("is in use by process %d", os.Getpid()))
	identity := string(d.record().Identity)
	if err := d.found(map[string]member{"n1": {}}); err != nil {
		t.Fatal(err)
	}
	if err := d.close(); err != nil {
		t.Fatal(err)
	}
	refused("n2", "belongs to node n1, but this node is n2")
	d = mustOpen() // what is refused does not keep the folder
	if _, err := d.learn(7, map[string]member{"n1": {}, "n2": {}}); err != nil {
		t.Fatal(err)
	}
	if changed, err := d.learn(8, nil); err != nil || changed || len(d.record().Nodes) != 2 {
		t.Errorf("an empty list is believed: %v, %v", changed, err)
	}
	if err := d.close(); err != nil {
		t.Fatal(err)
	}
	refused("n2", "belongs to node n1")

	// A folder that does not say whose it is, may know by its identity; else it is
	// whose name comes first.
	d = mustOpen()
	d.kept.Name = ""
	if err := errors.Join(d.write(d.kept), d.close()); err != nil {
		t.Fatal(err)
	}
	d = mustOpen()
	defer d.close()
	if owner := (&record{Identity: []byte("a"), Nodes: map[string]member{"n5": {Identity: []byte("a")}, "n6": {}}}).owner(); owner != "n5" {
		t.Errorf("its owner is %q", owner)
	}
	if string(d.record().Identity) != identity || d.record().Name != "n1" {
		t.Errorf("the folder is another one: %+v", d.record())
	}
}

// A flipped bit in a node's file changes nothing: the file has a checksum and a
// copy, and is whole again afterwards.
func TestNodeFileFlips(t *testing.T) {
	dir := t.TempDir()
	d, err := openDirectory(vfs.Default, dir, "n1")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.learn(7, map[string]member{"n1": {Address: "a:1", Identity: d.kept.Identity}, "n2": {Address: "b:2"}}); err != nil {
		t.Fatal(err)
	}
	if err := d.close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, nodeFile)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for at := 0; at < len(whole); at += 3 {
		for _, file := range []string{path, path + copySuffix} {
			flipped := bytes.Clone(whole)
			flipped[at] ^= 1 << (at % 8)
			if err := os.WriteFile(file, flipped, 0o600); err != nil {
				t.Fatal(err)
			}
			d, err := openDirectory(vfs.Default, dir, "n1")
			if err != nil {
				t.Fatalf("byte %d of %s: %v", at, filepath.Base(file), err)
			}
			if err := d.close(); err != nil {
				t.Fatal(err)
			}
			for _, file := range []string{path, path + copySuffix} {
				if now, err := os.ReadFile(file); err != nil || !bytes.Equal(now, whole) {
					t.Fatalf("byte %d: then %s is %q, %v", at, filepath.Base(file), now, err)
				}
			}
		}
	}
	for _, file := range []string{path, path + copySuffix} {
		if err := os.WriteFile(file, whole[1:], 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if d, err := openDirectory(vfs.Default, dir, "n1"); err == nil || !strings.Contains(err.Error(), "is damaged") {
		t.Errorf("both are damaged: %v, %v", d, err)
	}
}

// The machine loses power right after a node has been given a new data folder:
// the folder is there, with who the node is.
func TestNewFolderOutlastsPower(t *testing.T) {
	disk := vfs.NewCrashableMem()
	const dir = "/var/lib/quorate"
	if err := makeFolder(disk, dir); err != nil {
		t.Fatal(err)
	}
	d, err := openDirectory(disk, dir, "n1")
	if err != nil {
		t.Fatal(err)
	}
	defer d.close()
	after := disk.CrashClone(vfs.CrashCloneCfg{})
	again, err := openDirectory(after, dir, "n1")
	if err != nil {
		t.Fatal(err)
	}
	defer again.close()
	if !bytes.Equal(again.record().Identity, d.record().Identity) {
		t.Errorf("identity %x, was %x", again.record().Identity, d.record().Identity)
	}
}
