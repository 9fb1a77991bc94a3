package cluster

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// What ext4 and xfs call EXT4_IOC_SHUTDOWN and XFS_IOC_GOINGDOWN, and the flag with which
// the journal is not written either.
const (
	shutdownRequest      = 0x8004587d
	shutdownWithoutFlush = 2
)

// ErrNoDisks means that this machine does not permit disks that can be broken.
var ErrNoDisks = errors.New("no disk of its own for a node: that needs the rights of root, the tools of the filesystem, a loop device and fsfreeze")

// diskBytes is the size of a disk. Little of it is used: the image is sparse.
const diskBytes = 2 << 30

// filesystem is how a kind of filesystem is made and mounted.
type filesystem struct {
	format  []string
	options string // of mount
}

var filesystems = map[string]filesystem{
	"ext4": {[]string{"mkfs.ext4", "-q", "-m", "0", "-E", "lazy_itable_init=1"}, "loop,errors=remount-ro"},
	"xfs":  {[]string{"mkfs.xfs", "-q"}, "loop"},
}

// Disk is a separate filesystem that can be made to fail in several ways.
type Disk struct {
	folder string
	image  string
	kind   string // of filesystems

	mu      sync.Mutex
	hangs   bool
	full    bool
	slow    string // control group of those who find the disk slow; empty: nobody does
	broken  bool   // an error was found: nothing is written any more
	devices string // major and minor number
}

// NewDisk mounts an empty disk with ext4 on a folder, which it creates.
func NewDisk(folder string) (*Disk, error) { return NewDiskOf(folder, "ext4") }

// NewDiskOf is NewDisk for another filesystem: xfs. It has no MakeReadOnly.
func NewDiskOf(folder, kind string) (*Disk, error) {
	if _, known := filesystems[kind]; !known {
		return nil, fmt.Errorf("filesystem %q: known are ext4 and xfs", kind)
	}
	d := &Disk{folder: folder, image: filepath.Clean(folder) + ".disk", kind: kind}
	if os.Geteuid() != 0 {
		return nil, ErrNoDisks
	}
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, err
	}
	image, err := os.Create(d.image)
	if err == nil {
		err = errors.Join(image.Truncate(diskBytes), image.Close())
	}
	if err != nil {
		return nil, err
	}
	for _, do := range []func() error{d.format, d.mount} {
		if err := do(); err != nil {
			return nil, fmt.Errorf("%w (%w)", ErrNoDisks, err)
		}
	}
	return d, nil
}

// makeDisks gives each node a disk, if it is wanted and possible.
func (c *Cluster) makeDisks(o Options) error {
	c.noDisks = errors.New("the cluster was started without disks that can be broken")
	if !o.Disks {
		return nil
	}
	c.noDisks = nil
	if o.Filesystem == "" {
		o.Filesystem = "ext4"
	}
	for k := 1; k <= o.Nodes; k++ {
		d, err := NewDiskOf(filepath.Join(c.dir, "data", nodeName(k)), o.Filesystem)
		if errors.Is(err, ErrNoDisks) {
			c.noDisks = err
			return c.CloseDisks()
		}
		if err != nil {
			return err
		}
		if c.Disks == nil {
			c.Disks = map[int]*Disk{}
		}
		c.Disks[k] = d
	}
	return nil
}

// NoDisks returns why the nodes have no disks that can be broken; nil: they have.
func (c *Cluster) NoDisks() error { return c.noDisks }

// NoErrors returns why the filesystems of the nodes cannot be made to find an error, after
// which they are read-only; nil: they can.
func (c *Cluster) NoErrors() error {
	for _, d := range c.Disks {
		if d.kind != "ext4" {
			return fmt.Errorf("%s has no errors on demand, as ext4 has", d.kind)
		}
	}
	return c.noDisks
}

// CloseDisks deletes the disks, with all data and logs. The cluster must have stopped.
func (c *Cluster) CloseDisks() error {
	var errs []error
	for _, d := range c.Disks {
		errs = append(errs, d.Close())
	}
	c.Disks = nil
	return errors.Join(errs...)
}

func (d *Disk) format() error {
	return system(append(slices.Clone(filesystems[d.kind].format), d.image)...)
}

func (d *Disk) mount() error {
	if err := system("mount", "-o", filesystems[d.kind].options, d.image, d.folder); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Stat(d.folder, &st); err != nil {
		return err
	}
	d.devices = fmt.Sprintf("%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev))
	return nil
}

// Heal ends a hang, makes room on the disk, and makes it fast. What MakeReadOnly and
// LosePower did is ended by Repair and Reboot.
func (d *Disk) Heal() error { return errors.Join(d.Go(), d.Empty(), d.Hurry()) }

// Hang makes the disk hang.
func (d *Disk) Hang() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.hangs {
		return nil
	}
	d.hangs = true
	return system("fsfreeze", "--freeze", d.folder)
}

// Go ends a hang.
func (d *Disk) Go() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.hangs {
		return nil
	}
	d.hangs = false
	return system("fsfreeze", "--unfreeze", d.folder)
}

// ballast is the file that fills a disk.
func (d *Disk) ballast() string { return filepath.Join(d.folder, "ballast") }

// Fill takes all that is free on the disk, so that no file can grow.
func (d *Disk) Fill() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.full = true
	f, err := os.OpenFile(d.ballast(), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	var at int64
	for step := int64(diskBytes); step >= 4096; {
		switch err := unix.Fallocate(int(f.Fd()), 0, at, step); {
		case err == nil:
			at += step
		case errors.Is(err, unix.ENOSPC):
			step /= 2
		default:
			return fmt.Errorf("fill %s: %w", d.folder, err)
		}
	}
	return nil
}

// Empty ends Fill.
func (d *Disk) Empty() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.full {
		return nil
	}
	d.full = false
	return os.Remove(d.ballast())
}

// MakeReadOnly makes the filesystem find an error, after which it refuses all writes.
func (d *Disk) MakeReadOnly() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.broken = true
	device, err := d.device()
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join("/sys/fs/ext4", device, "trigger_fs_error"), []byte("1"), 0)
}

// Repair ends MakeReadOnly. Nobody may use the disk.
func (d *Disk) Repair() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.broken {
		return nil
	}
	d.broken = false
	if err := system("umount", d.folder); err != nil {
		return err
	}
	// It exits with 1 if there was something to repair.
	if err := system("e2fsck", "-f", "-y", d.image); err != nil {
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 1 {
			return err
		}
	}
	return d.mount()
}

// device returns the name of the disk's device.
func (d *Disk) device() (string, error) {
	path, err := os.Readlink(filepath.Join("/sys/dev/block", d.devices))
	return filepath.Base(path), err
}

// throttling is the folder of the control groups that slow disks down.
const throttling = "/sys/fs/cgroup/blkio"

// NoSlowing returns why disks cannot be made slow on this machine; nil: they can.
func NoSlowing() error {
	if _, err := os.Stat(filepath.Join(throttling, "blkio.throttle.write_iops_device")); err != nil {
		return fmt.Errorf("no control group that limits writes to a device: %w", err)
	}
	return nil
}

// Slow makes the disk write so many times a second at most, for a process.
func (d *Disk) Slow(pid, writes int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	group := filepath.Join(throttling, fmt.Sprintf("quorate-%d-%s", os.Getpid(), strings.ReplaceAll(d.devices, ":", "-")))
	if err := os.Mkdir(group, 0o700); err != nil {
		return err
	}
	d.slow = group
	return errors.Join(
		os.WriteFile(filepath.Join(group, "blkio.throttle.write_iops_device"), fmt.Appendf(nil, "%s %d", d.devices, writes), 0),
		os.WriteFile(filepath.Join(group, "cgroup.procs"), fmt.Append(nil, pid), 0))
}

// Hurry ends Slow.
func (d *Disk) Hurry() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.slow == "" {
		return nil
	}
	group := d.slow
	d.slow = ""
	return leaveGroup(group)
}

// LosePower makes the disk lose everything that was not synced: what is in memory and
// in the journal's open transaction is gone, and nothing can be written any more. Whoever
// uses the disk must be stopped before, and killed afterwards.
func (d *Disk) LosePower() error {
	f, err := os.Open(d.folder)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.IoctlSetPointerInt(int(f.Fd()), shutdownRequest, shutdownWithoutFlush); err != nil {
		return fmt.Errorf("shut down %s: %w", d.folder, err)
	}
	return nil
}

// Reboot mounts the disk again after it has lost its power. Nobody may use it.
func (d *Disk) Reboot() error {
	if err := errors.Join(system("umount", d.folder), d.mount()); err != nil {
		return err
	}
	f, err := os.CreateTemp(d.folder, "reboot")
	if err != nil {
		return fmt.Errorf("a disk without power is still mounted, perhaps in another mount namespace: %w", err)
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// Close unmounts the disk and deletes its contents. The disk must not be in use.
func (d *Disk) Close() error {
	return errors.Join(d.Heal(), system("umount", d.folder), os.Remove(d.image))
}

func system(words ...string) error {
	out, err := exec.Command(words[0], words[1:]...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(words, " "), err, out)
	}
	return nil
}

// DiskBytes returns the disk space that the data of all nodes uses.
func (c *Cluster) DiskBytes() (int64, error) { return DiskBytes(filepath.Join(c.dir, "data")) }

// DiskBytes returns the disk space that the files below a folder use.
func DiskBytes(dir string) (int64, error) {
	var total int64
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // deleted after it was listed
		}
		if err != nil {
			return err
		}
		info, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok && info.Mode().IsRegular() {
			total += st.Blocks * 512
		}
		return nil
	})
	return total, err
}

var (
	rssLine  = regexp.MustCompile(`(?m)^VmRSS:\s+(\d+) kB$`)
	peakLine = regexp.MustCompile(`(?m)^VmHWM:\s+(\d+) kB$`)
)

// ErrNoRSS means that the system does not report a process's memory.
var ErrNoRSS = errors.New("no VmRSS")

// RSSBytes returns the resident memory of the node's process.
func (n *Node) RSSBytes() (int64, error) { return RSSBytes(n.PID) }

// PeakRSSBytes returns the peak resident memory of the node's process.
func (n *Node) PeakRSSBytes() (int64, error) { return statusBytes(n.PID, peakLine) }

// RSSBytes returns the resident memory of a process.
func RSSBytes(pid int) (int64, error) { return statusBytes(pid, rssLine) }

// statusBytes reads a size from a process's status.
func statusBytes(pid int, line *regexp.Regexp) (int64, error) {
	status, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return 0, err
	}
	m := line.FindSubmatch(status)
	if m == nil {
		return 0, ErrNoRSS
	}
	kb, err := strconv.ParseInt(string(m[1]), 10, 64)
	return kb << 10, err
}

// DataFiles lists the files of a node's data that are not empty, in order, excluding
// files for people to read, such as logs, and what is the tester's own.
func (n *Node) DataFiles() (files []string, err error) {
	err = filepath.WalkDir(n.DataDir(), func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && strings.Contains(d.Name(), ".damaged-") { // set aside and never read
			return fs.SkipDir
		}
		if err != nil || !d.Type().IsRegular() || strings.HasPrefix(d.Name(), "quorate") || d.Name() == clockFile {
			return err
		}
		info, err := d.Info()
		if err == nil && info.Size() > 0 {
			files = append(files, path)
		}
		return err
	})
	return files, err
}

// FlipBit flips one bit of a file in place.
func FlipBit(path string, bit int64) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	var b [1]byte
	if _, err := f.ReadAt(b[:], bit/8); err != nil {
		return err
	}
	b[0] ^= 1 << (bit % 8)
	if _, err := f.WriteAt(b[:], bit/8); err != nil {
		return err
	}
	return f.Close()
}
