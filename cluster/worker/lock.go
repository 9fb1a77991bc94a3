package worker

import "sync"

// LongLock is a mutex that may be held while raft is waited for. Under virtual time, whoever waits
// for it lets time pass, as whoever holds it must.
type LongLock struct {
	once  sync.Once
	token chan struct{} // holds one as long as the lock is held
}

func (l *LongLock) channel() chan struct{} {
	l.once.Do(func() { l.token = make(chan struct{}, 1) })
	return l.token
}

// Lock implements sync.Locker.
func (l *LongLock) Lock() { l.channel() <- struct{}{} }

// Unlock implements sync.Locker.
func (l *LongLock) Unlock() { <-l.channel() }

// TryLock locks it if nobody else has, and reports whether it did.
func (l *LongLock) TryLock() bool {
	select {
	case l.channel() <- struct{}{}:
		return true
	default:
		return false
	}
}
