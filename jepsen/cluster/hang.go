package cluster

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// ErrNoDisks means that this machine does not permit disks that can be made to hang.
var ErrNoDisks = errors.New("no disk of its own for a node: that needs the rights of root, mkfs.ext4, a loop device and fsfreeze")

// Disk is a separate filesystem that can be made to hang: writes to it block, without
// an error.
type Disk struct {
	folder string
	image  string
	hangs  bool
}

// NewDisk mounts an empty disk on a folder, which it creates.
func NewDisk(folder string) (*Disk, error) {
	d := &Disk{folder: folder, image: filepath.Clean(folder) + ".disk"}
	if os.Geteuid() != 0 {
		return nil, ErrNoDisks
	}
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, err
	}
	const size = 2 << 30 // little of it is used: the image is sparse
	image, err := os.Create(d.image)
	if err == nil {
		err = errors.Join(image.Truncate(size), image.Close())
	}
	if err != nil {
		return nil, err
	}
	for _, words := range [][]string{{"mkfs.ext4", "-q", "-E", "lazy_itable_init=1", d.image}, {"mount", "-o", "loop", d.image, folder}} {
		if err := system(words...); err != nil {
			return nil, fmt.Errorf("%w (%w)", ErrNoDisks, err)
		}
	}
	return d, nil
}

// Hang makes the disk hang.
func (d *Disk) Hang() error {
	if d.hangs {
		return nil
	}
	d.hangs = true
	return system("fsfreeze", "--freeze", d.folder)
}

// Go ends a hang.
func (d *Disk) Go() error {
	if !d.hangs {
		return nil
	}
	d.hangs = false
	return system("fsfreeze", "--unfreeze", d.folder)
}

// Close unmounts the disk and deletes its contents. The disk must not be in use.
func (d *Disk) Close() error {
	return errors.Join(d.Go(), system("umount", d.folder), os.Remove(d.image))
}

func system(words ...string) error {
	out, err := exec.Command(words[0], words[1:]...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(words, " "), err, out)
	}
	return nil
}
