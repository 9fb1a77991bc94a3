package amqp

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/quorate/quorate/fsm/invariants"
)

// Names of the bounds of what a node holds for clients, which are those of the settings.
const (
	boundConnection = "held_memory.connection"
	boundUser       = "held_memory.user"
	boundNode       = "held_memory.node"
)

// Account counts the memory that a node holds for clients at one place: incomplete messages, queued
// methods, transactions and answers are held by the parts of a connection, and count there, at the
// connection, at its user and at the node.
//
// What a place holds is passed on to the one above in whole steps, so that small and short-lived amounts cost
// one addition. Somebody who is about to hold more asks with Take. At a bound it is not the one who asks
// that is to blame but the one who holds most: that part is relieved of what it holds, and the one who
// asks is refused only if that is itself, or if nobody can be relieved and it holds its share.
//
// Invariants: passed, which the one above counts, is a multiple of step, or 0 if there is none; passed ≤ bytes <
// passed + 2·step once all additions are over; bytes is what a part holds, or the sum of what those below have passed;
// a closed account holds nothing and is below nobody.
type Account struct {
	up    *Account // nil: nobody
	step  int64
	limit int64 // of bytes; 0: none
	bound string
	// relieve makes a part give up what it holds, soon. It does not block, and returns false if it cannot.
	// nil: it is no part, or fixed.
	relieve func(over *Account) bool
	fixed   bool // a part whose bytes go by themselves, or never

	bytes  atomic.Int64
	passed atomic.Int64

	mu    sync.Mutex // taken without any other account's
	below map[*Account]struct{}
}

// Steps in which accounts tell more: a part may hold less than one that nobody above knows of.
const (
	channelStep    = 4 << 10
	connectionStep = 64 << 10
)

// newPart returns an account below a. relieve nil: it is fixed.
func (a *Account) newPart(step int64, relieve func(over *Account) bool) *Account {
	p := &Account{step: step, relieve: relieve, fixed: relieve == nil}
	p.join(a)
	return p
}

// NewPart returns the account of a channel of the connection. relieve makes the channel
// give up what it holds because of what is over its bound (nil: an alarm), soon. It does
// not block, and returns false if it cannot.
func (c *Conn) NewPart(relieve func(over *Account) bool) *Account {
	return c.Memory.newPart(channelStep, relieve)
}

// Bytes is what is counted, or what those below have passed on.
func (a *Account) Bytes() int64 { return a.bytes.Load() }

// AboutHeld says that the bound of an account does not let more be held.
func AboutHeld(over *Account) string {
	return fmt.Sprintf("memory held for clients has reached its limit, %s = %d", over.bound, over.limit)
}

// join puts an account that has passed on nothing below another one. It is called before others use it.
func (a *Account) join(up *Account) {
	a.up = up
	up.mu.Lock()
	defer up.mu.Unlock()
	if up.below == nil {
		up.below = map[*Account]struct{}{}
	}
	up.below[a] = struct{}{}
}

// Close takes an account out, with what it still holds. clean says that it must hold nothing.
func (a *Account) Close(clean bool) {
	if invariants.Enabled && clean {
		invariants.Assert(a.bytes.Load() == 0, "a closed account holds nothing")
	}
	a.Add(-a.bytes.Load())
	if a.up != nil {
		a.up.mu.Lock()
		defer a.up.mu.Unlock()
		delete(a.up.below, a)
	}
}

// isEmpty reports whether nobody is below.
func (a *Account) isEmpty() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.below) == 0
}

// Add counts n more bytes, or fewer.
func (a *Account) Add(n int64) {
	b := a.bytes.Add(n)
	if passed := a.passed.Load(); a.up != nil && (b >= passed+a.step || b < passed) {
		a.tell()
	}
}

// tell tells the one above how many whole steps there are.
func (a *Account) tell() {
	a.mu.Lock()
	passed := a.passed.Load()
	now := max(a.bytes.Load(), 0) / a.step * a.step
	a.passed.Store(now)
	a.mu.Unlock()
	if now != passed {
		a.up.Add(now - passed)
	}
}

// Take counts n more bytes, unless a bound does not let it: then nothing is counted, and the account with
// the bound is returned.
func (a *Account) Take(n int64) (refused *Account) {
	a.Add(n)
	if a.passed.Load() == 0 {
		return nil
	}
	child := a
	for over := a.up; over != nil; over = over.up {
		if over.isOver() && !over.relieveOther(a, child) {
			a.Add(-n)
			return over
		}
		child = over
	}
	return nil
}

func (a *Account) isOver() bool { return a.limit > 0 && a.bytes.Load() > a.limit }

// relieveOther relieves the one who holds most, so that the part that asks, which child is or is above of, may
// hold more. false: that is the one who asks.
func (a *Account) relieveOther(asks, child *Account) bool {
	most := a.largest()
	if most == asks || most != nil && most.up == asks.up && most.bytes.Load() <= asks.bytes.Load() {
		return false
	}
	return most != nil && most.relieve(a) || !a.isGreedy(child)
}

// isGreedy reports whether one below holds an equal share or more.
func (a *Account) isGreedy(child *Account) bool {
	a.mu.Lock()
	n := int64(len(a.below))
	a.mu.Unlock()
	return child.bytes.Load() >= a.limit/max(n, 1)
}

// isCrowded reports whether a user or the node is at its bound, and the account has more than its share of that.
func (a *Account) isCrowded() bool {
	for child := a; child.up != nil; child = child.up {
		if child.up.isOver() && child.up.isGreedy(child) {
			return true
		}
	}
	return false
}

// largest finds the part with most bytes that can be relieved: of the connection with most of the user with
// most; nil: it has none.
func (a *Account) largest() *Account {
	for a.relieve == nil {
		var most *Account
		a.mu.Lock()
		for p := range a.below {
			if !p.fixed && (most == nil || p.bytes.Load() > most.bytes.Load()) {
				most = p
			}
		}
		a.mu.Unlock()
		if most == nil {
			return nil
		}
		a = most
	}
	return a
}

// users are the accounts of a node and of its users: those that have connections, or requests over HTTP.
type users struct {
	node  *Account
	limit int64 // of a user

	mu   sync.Mutex
	list map[string]*Account
}

func newUsers(user, node int64) users {
	return users{node: &Account{limit: node, bound: boundNode}, limit: user, list: map[string]*Account{}}
}

// join puts an account below that of a user.
func (u *users) join(name string, a *Account) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.list[name] == nil {
		user := &Account{step: connectionStep, limit: u.limit, bound: boundUser}
		user.join(u.node)
		u.list[name] = user
	}
	a.join(u.list[name])
}

// leave closes an account below that of a user.
func (u *users) leave(name string, a *Account, clean bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	a.Close(clean)
	if user := u.list[name]; user != nil && user.isEmpty() {
		user.Close(clean)
		delete(u.list, name)
	}
}

// Held is the number of bytes of memory that are held for clients, but for the first 64 KiB of each connection.
func (s *Server) Held() int64 { return s.users.node.bytes.Load() }

// HeldMemory is the memory that is held for clients, by what holds it, in bytes. Other than what counts at a bound
// it leaves nothing out.
type HeldMemory struct {
	Channels  uint64 // incomplete messages, methods that wait, transactions
	Publishes uint64 // without a final result
	Answers   uint64 // and deliveries, that are not written yet
	Others    uint64 // what others hold: see Hold
}

func (c *Conn) heldMemory(parts []*Account) (h HeldMemory) {
	for _, p := range parts {
		h.Channels += uint64(max(p.bytes.Load(), 0))
	}
	h.Publishes, h.Answers = uint64(max(c.Flow.memory.bytes.Load(), 0)), uint64(max(c.Out.memory.bytes.Load(), 0))
	return h
}

// HeldMemory is what all clients hold.
func (s *Server) HeldMemory() HeldMemory {
	all := HeldMemory{Others: uint64(max(s.others.Load(), 0))}
	for _, c := range s.open() {
		h := c.heldMemory(c.endpoint.Parts())
		all.Channels, all.Publishes, all.Answers = all.Channels+h.Channels, all.Publishes+h.Publishes, all.Answers+h.Answers
	}
	return all
}

// maxHeldAlarmed is how much Hold lets somebody hold during an alarm.
const maxHeldAlarmed = 2 << 20

var errHeldAlarmed = fmt.Errorf("at most %d bytes of messages are returned while a resource alarm is in effect", maxHeldAlarmed)

// Hold returns a function that sets how much memory something else holds for a user. Its error names the bound that is
// reached: then as much is held as before. It is called by one goroutine at a time, at last with 0, which always succeeds.
func (s *Server) Hold(user string) func(bytes int64) error {
	a, held := &Account{step: connectionStep, fixed: true}, int64(0)
	return func(bytes int64) error {
		if bytes > max(held, maxHeldAlarmed) && s.alarm.Load() != nil {
			return errHeldAlarmed
		}
		if held == 0 && bytes > 0 {
			s.users.join(user, a)
		}
		var err error
		if bytes < held {
			a.Add(bytes - held)
		} else if over := a.Take(bytes - held); over != nil {
			err, bytes = fmt.Errorf("RESOURCE_ERROR - %s", AboutHeld(over)), held
		}
		if bytes == 0 && a.up != nil {
			s.users.leave(user, a, true)
			a.up = nil
		}
		s.others.Add(bytes - held)
		held = bytes
		return err
	}
}

// Relieve is called again and again while memory is short by so many bytes. If the cause is what channels hold, they
// are relieved of it, beginning with the one that holds most.
func (s *Server) Relieve(excess int64) {
	type holder struct {
		part  *Account
		bytes int64
	}
	var list []holder
	sum := int64(0)
	for _, c := range s.open() {
		for _, p := range c.endpoint.Parts() {
			if n := p.bytes.Load(); n >= connectionStep {
				list = append(list, holder{p, n})
				sum += n
			}
		}
	}
	if sum < excess/2 {
		return // it is something else
	}
	slices.SortFunc(list, func(a, b holder) int { return cmp.Compare(b.bytes, a.bytes) })
	for _, h := range list {
		if h.part.relieve(nil); excess <= h.bytes {
			return
		}
		excess -= h.bytes
	}
}
