package raftlog

import (
	"errors"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// supply has files for segments: those that are to be written over, and the next segment, which a goroutine
// makes before it is needed, since that takes two syncs. segments.mu guards it.
//
//	next ≠ nil ⇒ ¬making
type supply struct {
	last   uint32    // the highest number
	next   *segment  // it will be the active one; nil: there is none yet
	spare  []string  // files that are to be written over
	making bool      // a goroutine makes the next one
	made   sync.Cond // signalled when it has
}

// bytes is how much disk space there is in it.
func (s *supply) bytes(each int64) int64 {
	n := int64(len(s.spare))
	if s.next != nil {
		n++
	}
	return n * each
}

// makeNext makes the next segment, unless there is one, or is about to be. The caller holds mu.
func (s *segments) makeNext() {
	if s.files.next != nil || s.files.making {
		return
	}
	s.files.making = true
	number, over := s.plan()
	go func() { // close waits for it
		next := s.create(number, over)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.files.next, s.files.making = next, false
		s.files.made.Broadcast()
	}()
}

// takeNext returns the next segment, or nil when one has been made, by then perhaps taken by another caller. While
// that lasts mu, which the caller holds, is free.
func (s *segments) takeNext() *segment {
	next := s.files.next
	if next == nil {
		s.makeNext()
		s.files.made.Wait()
		return nil
	}
	s.files.next = nil
	return next
}

// dropNext makes a spare file of the next segment. The caller holds mu, which is free while it is being made.
func (s *segments) dropNext() {
	for s.files.making {
		s.files.made.Wait()
	}
	if next := s.files.next; next != nil {
		s.files.next = nil
		s.must("close a segment", next.file.Close())
		s.files.spare = append(s.files.spare, s.name(next.number))
	}
}

// plan chooses the number of another segment, and a file to write over; "": there is none. The caller holds
// mu.
func (s *segments) plan() (number uint32, over string) {
	s.collect()
	f := &s.files
	if n := len(f.spare); n > 0 {
		over = f.spare[n-1]
		f.spare = f.spare[:n-1]
	}
	f.last++
	return f.last, over
}

// create makes a segment, whose name is durable before anything refers to it.
func (s *segments) create(number uint32, over string) *segment {
	name := s.name(number)
	if over != "" {
		s.must("begin a segment", s.fs.Rename(over, name))
	} else if _, err := s.fs.Stat(s.dir); err != nil {
		s.must("make the folder of segments", s.fs.MkdirAll(s.dir, 0o700))
		s.must("make the folder of segments", s.syncDir(s.fs.PathDir(s.dir)))
	}
	// Written at offsets: vfs.File allows no other write to leave what it is given as it was.
	file, err := s.fs.OpenReadWrite(name, vfs.WriteCategoryUnspecified)
	s.must("begin a segment", err)
	_, err = file.WriteAt(appendSegmentHead(nil, number, false), 0)
	s.must("begin a segment", err)
	s.must("begin a segment", s.syncDir(s.dir))
	return &segment{number: number, file: file, length: int64(segmentHead), waiting: map[uint32][]byte{}}
}

func (s *segments) syncDir(dir string) error {
	d, err := s.fs.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
