package cluster

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

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
