package cluster

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// mustDisk mounts a disk until the test ends, or skips the test.
func mustDisk(t *testing.T) *Disk {
	t.Helper()
	return mustDiskOf(t, "ext4")
}

func mustDiskOf(t *testing.T, filesystem string) *Disk {
	t.Helper()
	return mustDiskAt(t, filepath.Join(t.TempDir(), "disk"), filesystem)
}

func mustDiskAt(t *testing.T, folder, filesystem string) *Disk {
	t.Helper()
	d, err := NewDiskOf(folder, filesystem)
	if errors.Is(err, ErrNoDisks) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// writeSynced writes to a file of the disk and syncs it.
func writeSynced(d *Disk, name string, bytes int) error {
	f, err := os.Create(filepath.Join(d.folder, name))
	if err != nil {
		return err
	}
	_, err = f.Write(make([]byte, bytes))
	return errors.Join(err, f.Sync(), f.Close())
}

func TestFullDisk(t *testing.T) {
	d := mustDisk(t)
	if err := writeSynced(d, "before", 1<<20); err != nil {
		t.Fatal(err)
	}
	if err := d.Fill(); err != nil {
		t.Fatal(err)
	}
	if err := writeSynced(d, "full", 1<<16); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("a full disk: %v", err)
	}
	if err := d.Empty(); err != nil {
		t.Fatal(err)
	}
	if err := writeSynced(d, "after", 1<<20); err != nil {
		t.Errorf("when there is room again: %v", err)
	}
}

// A disk without power fails writes; afterwards it has what was synced.
func TestDiskLosesPower(t *testing.T) {
	for filesystem := range filesystems {
		t.Run(filesystem, func(t *testing.T) {
			d := mustDiskOf(t, filesystem)
			if err := writeSynced(d, "before", 10); err != nil {
				t.Fatal(err)
			}
			if err := d.LosePower(); err != nil {
				t.Fatal(err)
			}
			if err := writeSynced(d, "without", 10); err == nil {
				t.Error("a disk without power writes")
			}
			if err := d.Reboot(); err != nil {
				t.Fatal(err)
			}
			if text, err := os.ReadFile(filepath.Join(d.folder, "before")); err != nil || len(text) != 10 {
				t.Errorf("what was synced: %q, %v", text, err)
			}
			if err := writeSynced(d, "after", 10); err != nil {
				t.Errorf("mounted again: %v", err)
			}
		})
	}
	if _, err := NewDiskOf(t.TempDir(), "fat"); err == nil || errors.Is(err, ErrNoDisks) {
		t.Errorf("an unknown filesystem: %v", err)
	}
}

// A clock is no data: what it was last set to holds after a loss of power at once.
func TestClockOutlastsPower(t *testing.T) {
	n := &Node{Number: 1, dir: t.TempDir()}
	d := mustDiskAt(t, n.DataDir(), "ext4")
	if err := errors.Join(n.writeClock("0"), n.SetDrift(2), writeSynced(d, "before", 10), n.writeClock("0"), d.LosePower(), d.Reboot()); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(filepath.Join(n.DataDir(), clockFile)); err != nil || string(text) != "0" {
		t.Errorf("the clock is %q: %v", text, err)
	}
}

func TestReadOnlyDisk(t *testing.T) {
	d := mustDisk(t)
	if err := writeSynced(d, "before", 10); err != nil {
		t.Fatal(err)
	}
	if err := d.MakeReadOnly(); err != nil {
		t.Fatal(err)
	}
	if err := writeSynced(d, "read-only", 10); !errors.Is(err, syscall.EROFS) {
		t.Errorf("a read-only disk: %v", err)
	}
	if text, err := os.ReadFile(filepath.Join(d.folder, "before")); err != nil || len(text) != 10 {
		t.Errorf("what was there: %q, %v", text, err)
	}
	if err := d.Repair(); err != nil {
		t.Fatal(err)
	}
	if err := writeSynced(d, "after", 10); err != nil {
		t.Errorf("repaired: %v", err)
	}
	if text, err := os.ReadFile(filepath.Join(d.folder, "before")); err != nil || len(text) != 10 {
		t.Errorf("what was there, repaired: %q, %v", text, err)
	}
}

// A disk is slow for the process that is named, also for what it has begun to write before.
func TestSlowDisk(t *testing.T) {
	if err := NoSlowing(); err != nil {
		t.Skip(err)
	}
	d := mustDisk(t)
	const writes, each = 20, 10
	writer := exec.Command("sh", "-c", `read go; dd if=/dev/zero of="$0" bs=4096 count=$1 oflag=dsync 2>/dev/null; echo done; read go`, filepath.Join(d.folder, "written"), strconv.Itoa(each))
	in, err := writer.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := writer.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := writer.Start(); err != nil {
		t.Fatal(err)
	}
	defer writer.Wait()
	defer in.Close()
	if err := d.Slow(writer.Process.Pid, writes); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if _, err := in.Write([]byte("\n")); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 8)); err != nil {
		t.Fatal(err)
	}
	took := time.Since(began)
	if t.Logf("%d synced writes in %v", each, took.Round(time.Millisecond)); took < each*time.Second/writes/2 {
		t.Errorf("%d synced writes in %v, at %d a second", each, took, writes)
	}
	group := d.slow
	if err := d.Hurry(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(group); err == nil {
		t.Error("the control group is still there")
	}
	if groups, err := os.ReadFile("/proc/" + strconv.Itoa(writer.Process.Pid) + "/cgroup"); err != nil || strings.Contains(string(groups), filepath.Base(group)) {
		t.Errorf("the process is still in it: %s, %v", groups, err)
	}
}

// Who writes to a hung disk waits until it goes on.
func TestHungDisk(t *testing.T) {
	d := mustDisk(t)
	if err := d.Hang(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- writeSynced(d, "written", 10) }()
	select {
	case err := <-done:
		t.Errorf("a hung disk: %v", err)
	case <-time.After(200 * time.Millisecond):
	}
	if err := d.Go(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}
