package raftlog

import (
	"sync"

	"github.com/quorate/quorate/fsm"
)

const (
	cacheShards = 4
	// cacheOverhead is what an entry costs in the cache beside its bytes.
	cacheOverhead = 192
	// admitAtOnce: entries up to this size enter the cache with the first read
	// from disk. Larger ones enter with the second, so that one small pinned
	// message does not push a megabyte of hot entries out.
	admitAtOnce = 64 << 10
	// recentSlots is how many recent misses of large entries a shard remembers.
	recentSlots = 32
)

// cacheKey names an entry. The epoch is unique in the store and changes when
// indexes of a group begin to mean other entries: what was read before the
// change cannot be found after it.
type cacheKey struct {
	epoch uint64
	group fsm.GroupID
	index uint64
}

// cache holds recent entries of all groups, bounded by bytes, least recently
// used first out.
type cache struct {
	shards [cacheShards]cacheShard
}

type cacheShard struct {
	mu       sync.Mutex
	byKey    map[cacheKey]*cacheNode
	head     cacheNode // ring: next is the most recently used
	bytes    int64
	limit    int64
	hits     uint64
	misses   uint64
	recent   [recentSlots]cacheKey
	recentAt int
}

type cacheNode struct {
	prev, next *cacheNode
	key        cacheKey
	entry      *entry
	bytes      int64
}

func newCache(limit int64) *cache {
	c := new(cache)
	for i := range c.shards {
		s := &c.shards[i]
		s.byKey = make(map[cacheKey]*cacheNode)
		s.limit = limit / cacheShards
		s.head.prev, s.head.next = &s.head, &s.head
	}
	return c
}

func (c *cache) shard(k cacheKey) *cacheShard {
	h := (k.index + uint64(k.group)*0x9e3779b97f4a7c15) * 0xbf58476d1ce4e5b9
	return &c.shards[h>>62]
}

// get returns an entry or nil.
func (c *cache) get(k cacheKey) *entry {
	s := c.shard(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.byKey[k]
	if n == nil {
		s.misses++
		return nil
	}
	s.hits++
	if s.head.next != n {
		n.unlink()
		n.linkAfter(&s.head)
	}
	return n.entry
}

// put adds an entry, or replaces it if the new one has more of it.
func (c *cache) put(k cacheKey, e *entry) {
	s := c.shard(k)
	bytes := int64(len(e.data)+len(e.ext)) + cacheOverhead
	if bytes > s.limit {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.byKey[k]; n != nil {
		if n.entry.whole() {
			return
		}
		s.drop(n)
	}
	n := &cacheNode{key: k, entry: e, bytes: bytes}
	s.byKey[k] = n
	n.linkAfter(&s.head)
	s.bytes += bytes
	for s.bytes > s.limit {
		s.drop(s.head.prev)
	}
}

// remove forgets an entry that nobody will ask for any more.
func (c *cache) remove(k cacheKey) {
	s := c.shard(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.byKey[k]; n != nil {
		s.drop(n)
	}
}

// admits reports whether an entry of this size, just read from disk, should
// enter the cache.
func (c *cache) admits(k cacheKey, bytes int) bool {
	if bytes <= admitAtOnce {
		return true
	}
	s := c.shard(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, seen := range s.recent {
		if seen == k {
			return true
		}
	}
	s.recent[s.recentAt] = k
	s.recentAt = (s.recentAt + 1) % recentSlots
	return false
}

// stats sums up all shards.
func (c *cache) stats() (bytes int64, hits, misses uint64) {
	for i := range c.shards {
		s := &c.shards[i]
		s.mu.Lock()
		bytes += s.bytes
		hits += s.hits
		misses += s.misses
		s.mu.Unlock()
	}
	return bytes, hits, misses
}

func (s *cacheShard) drop(n *cacheNode) {
	n.unlink()
	delete(s.byKey, n.key)
	s.bytes -= n.bytes
}

func (n *cacheNode) unlink() {
	n.prev.next, n.next.prev = n.next, n.prev
}

func (n *cacheNode) linkAfter(at *cacheNode) {
	n.prev, n.next = at, at.next
	at.next.prev = n
	at.next = n
}
