package broker

import (
	"context"
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/subtle"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
)

// HashAlgorithm names how passwords are kept: PBKDF2 with HMAC-SHA-256. A
// hash is the number of iterations (4 bytes), the salt (16) and the key (32).
const HashAlgorithm = "pbkdf2_sha256"

// Names of the hashes that come with users from RabbitMQ: a salt of 4 bytes,
// and the digest of it and the password.
const (
	ImportedSHA256 = "rabbit_password_hashing_sha256"
	ImportedSHA512 = "rabbit_password_hashing_sha512"
	importedSalt   = 4
)

const (
	hashIterations = 100_000
	saltBytes      = 16
	keyBytes       = 32
)

// errLogin is the one answer to every failed login.
var errLogin = errors.New("login was refused")

// HashPassword makes the hash of a new password.
func HashPassword(password string) ([]byte, error) {
	salt := make([]byte, saltBytes)
	if _, err := rand.Read(salt); err != nil {
		return nil, err
	}
	return hashWith(password, salt, hashIterations)
}

func hashWith(password string, salt []byte, iterations uint32) ([]byte, error) {
	key, err := pbkdf2.Key(sha256.New, password, salt, int(iterations), keyBytes)
	if err != nil {
		return nil, fmt.Errorf("hash a password: %w", err)
	}
	out := binary.BigEndian.AppendUint32(nil, iterations)
	return append(append(out, salt...), key...), nil
}

// maxIterations bounds what a hash that was given may cost.
const maxIterations = 10_000_000

// ValidHash reports whether a hash could be one made with an algorithm.
func ValidHash(hash []byte, algorithm string) bool {
	switch algorithm {
	case HashAlgorithm:
		return len(hash) == 4+saltBytes+keyBytes && binary.BigEndian.Uint32(hash) <= maxIterations
	case ImportedSHA256:
		return len(hash) == importedSalt+sha256.Size
	case ImportedSHA512:
		return len(hash) == importedSalt+sha512.Size
	}
	return false
}

// passwordMatches compares in constant time. Other algorithms, and users without
// a hash, never match.
func passwordMatches(hash []byte, algorithm, password string) bool {
	if !ValidHash(hash, algorithm) {
		return false
	}
	var again []byte
	switch algorithm {
	case ImportedSHA256:
		sum := sha256.Sum256(append(slices.Clone(hash[:importedSalt]), password...))
		again = append(slices.Clone(hash[:importedSalt]), sum[:]...)
	case ImportedSHA512:
		sum := sha512.Sum512(append(slices.Clone(hash[:importedSalt]), password...))
		again = append(slices.Clone(hash[:importedSalt]), sum[:]...)
	default:
		var err error
		if again, err = hashWith(password, hash[4:4+saltBytes], binary.BigEndian.Uint32(hash)); err != nil {
			return false
		}
	}
	return subtle.ConstantTimeCompare(hash, again) == 1
}

// noUser is what the password of an unknown user is compared with, so that a
// refusal takes equally long whether the user exists or not.
var noUser = sync.OnceValue(func() []byte {
	h, err := HashPassword("")
	if err != nil {
		panic(err) // the random source of the system does not fail
	}
	return h
})

// Login checks a password. Users of the loopback list may come from loopback
// addresses only.
func (b *Broker) Login(ctx context.Context, user, password string, remote netip.Addr) error {
	u, known := b.freshView(ctx).User(user)
	hash, algorithm := noUser(), HashAlgorithm
	if known {
		hash, algorithm = u.PasswordHash, u.HashAlgorithm
	}
	matches := b.logins.check(hash, algorithm, password)
	return b.admit(user, known, matches, remote)
}

// LoginCertified is Login for a client that has proved by a certificate who it
// is. A password is not needed, the user is.
func (b *Broker) LoginCertified(ctx context.Context, user string, remote netip.Addr) error {
	_, known := b.freshView(ctx).User(user)
	return b.admit(user, known, true, remote)
}

// admit decides about a login and says in the log why one is refused.
func (b *Broker) admit(user string, known, proved bool, remote netip.Addr) error {
	reason := ""
	switch {
	case !known:
		reason = "no such user"
	case !proved:
		reason = "wrong password"
	case slices.Contains(b.config.LoopbackUsers, user) && !remote.Unmap().IsLoopback():
		reason = "user may connect from loopback only"
	default:
		return nil
	}
	b.slog.Warn("login refused", "user", user, "remote", remote, "reason", reason)
	return errLogin
}

// loginCache remembers which passwords matched, so that a client that
// reconnects does not cost a slow hash each time. It holds no password: the
// key of an entry is a keyed digest that only this process can make.
type loginCache struct {
	once sync.Once
	key  [32]byte
	mu   sync.Mutex
	good map[[32]byte]struct{}
}

const maxLogins = 1024

func (c *loginCache) check(hash []byte, algorithm, password string) bool {
	c.once.Do(func() {
		if _, err := rand.Read(c.key[:]); err != nil {
			panic(err) // the random source of the system does not fail
		}
		c.good = map[[32]byte]struct{}{}
	})
	mac := hmac.New(sha256.New, c.key[:])
	mac.Write(hash)
	mac.Write([]byte(password))
	digest := [32]byte(mac.Sum(nil))
	c.mu.Lock()
	_, good := c.good[digest]
	c.mu.Unlock()
	if good {
		return true
	}
	if !passwordMatches(hash, algorithm, password) {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.good) >= maxLogins {
		clear(c.good)
	}
	c.good[digest] = struct{}{}
	return true
}

// Connection is one client's connection to one vhost.
type Connection struct {
	broker *Broker
	user   string
	vhost  string
	number uint64
	owns   atomic.Bool // an exclusive queue was declared

	channels atomic.Int64 // that are open
}

// mayOpen refuses a vhost that is not there, or not for this user.
func mayOpen(v *catalog.View, user, vhost string) error {
	if _, ok := v.VHost(vhost); !ok {
		return fsm.Refuse(fsm.NotAllowed, fmt.Sprintf("vhost %s not found", vhost))
	}
	if _, ok := v.Permission(user, vhost); !ok {
		return fsm.Refuse(fsm.NotAllowed, fmt.Sprintf("access to vhost '%s' refused for user '%s'", vhost, user))
	}
	return nil
}

// Connect opens a vhost for a user that has logged in, on behalf of something
// that is no client's connection: limits do not concern it. See Enter.
func (b *Broker) Connect(ctx context.Context, user, vhost string) (*Connection, error) {
	if err := mayOpen(b.freshView(ctx), user, vhost); err != nil {
		return nil, err
	}
	return b.connection(user, vhost), nil
}

func (b *Broker) connection(user, vhost string) *Connection {
	return &Connection{broker: b, user: user, vhost: vhost, number: b.connNumber.Add(1)}
}

// Renew looks again at what the user may do: open the vhost, and read the
// queues it consumes from.
func (c *Connection) Renew() error {
	b := c.broker
	v := b.view()
	if err := mayOpen(v, c.user, c.vhost); err != nil {
		return err
	}
	b.mu.RLock()
	var mine []*Session
	for _, s := range b.sessions {
		if s.conn == c {
			mine = append(mine, s)
		}
	}
	b.mu.RUnlock()
	for _, s := range mine {
		s.revoke(v)
	}
	return nil
}

// OpenSession starts the session of a channel.
func (c *Connection) OpenSession(client fsm.SessionEvents) (*Session, error) {
	b := c.broker
	self := fsm.NodeID(b.self.Load())
	if self == 0 {
		return nil, fsm.Refuse(fsm.Internal, "this node has not joined the cluster yet")
	}
	if err := c.addChannel(); err != nil {
		return nil, err
	}
	b.mu.Lock() // the boot and the list of its sessions, see Renew
	defer b.mu.Unlock()
	s := &Session{
		conn: c, client: client,
		id:        fsm.SessionID{Node: self, Boot: b.boot.Load(), Num: b.sessionNumber.Add(1)},
		lanes:     map[fsm.QueueID]*lane{},
		consumers: map[uint64]*consumer{},
		message:   catalog.Message{Local: b.leadsHere, Passed: b.used},
	}
	b.sessions[s.id.Num] = s
	return s, nil
}
