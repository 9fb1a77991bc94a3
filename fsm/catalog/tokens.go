package catalog

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

const (
	// MaxJoinTokens bounds the tokens whose time is not over.
	MaxJoinTokens = 64
	// MinJoinTokenTTL is the shortest time for which one is good.
	MinJoinTokenTTL fsm.Millis = 1000
	// MaxJoinTokenTTL is the longest.
	MaxJoinTokenTTL fsm.Millis = 7 * 24 * 3600 * 1000
	// maxNodeName is the longest name that a token can be for, in bytes.
	maxNodeName = 255
	// JoinTokenHashSize is the length of a token's hash.
	JoinTokenHashSize = 32
)

// Why a token lets a node not in. None says more than who holds the token may
// know.
const (
	tokenUnknown   = "unknown, revoked or expired join token"
	tokenUsed      = "the token has already been used"
	tokenElsewhere = "the token is for another node name"
	tokenKnownName = "a node with this name already exists: replacing it requires a token issued for this name"
)

// TokenRefused reports whether a refusal is one of a token. It compares texts,
// so it also works for a refusal that another node has sent.
func TokenRefused(err error) bool {
	r, ok := err.(*fsm.Refusal)
	return ok && slices.Contains([]string{tokenUnknown, tokenUsed, tokenElsewhere, tokenKnownName}, r.Text)
}

func byHash(t *logpb.JoinToken, hash []byte) int { return bytes.Compare(t.GetHash(), hash) }

// joinTokens are the tokens that let nodes in.
//
// Invariants: hashes ascend, each of JoinTokenHashSize bytes; at most
// MaxJoinTokens; a token has a node that used it and the identity of its folder,
// or neither. The slice is replaced, never changed.
//
// It holds the hashes only, never the secrets. Records are replaced, not
// changed. A snapshot holds the slice as it is. Tokens that have expired may
// still be in it, as the catalog has no ticks; put removes them, after does not
// accept them.
type joinTokens struct{ tokens []*logpb.JoinToken }

// JoinTokens lists the tokens by their hashes, those included whose time has run
// out by now. Nobody may change it.
func (ts *joinTokens) JoinTokens() []*logpb.JoinToken { return ts.tokens }

// put lets one more node in, for a time. Tokens whose time is over go,
// and if there are too many used ones do, too.
//
// It performs PutJoinToken. On return the token expires at clock + ttl, and at
// most MaxJoinTokens are left. Used tokens are removed, the one that expires
// first, only to make place; unused ones never are. A hash that is there is
// refused, even of a used token.
func (ts *joinTokens) put(m *logpb.PutJoinToken, clock fsm.Time) (*logpb.CatalogResult, error) {
	ttl := fsm.Millis(m.GetTtl())
	switch {
	case len(m.GetHash()) != JoinTokenHashSize:
		return nil, refuse(fsm.Internal, "the hash of a token has %d bytes", JoinTokenHashSize)
	case ttl < MinJoinTokenTTL || ttl > MaxJoinTokenTTL:
		return nil, refuse(fsm.Precondition, "a token must be valid for %d to %d ms, not %d", MinJoinTokenTTL, MaxJoinTokenTTL, m.GetTtl())
	case len(m.GetNode()) > maxNodeName:
		return nil, refuse(fsm.Precondition, "a node's name may have at most %d bytes", maxNodeName)
	}
	// Not in place: earlier views share the list.
	all := slices.DeleteFunc(slices.Clone(ts.tokens), func(t *logpb.JoinToken) bool { return tokenExpired(t, clock) })
	if _, found := slices.BinarySearchFunc(all, m.GetHash(), byHash); found {
		return nil, refuse(fsm.Precondition, "the token already exists")
	}
	if len(all) >= MaxJoinTokens {
		used := slices.DeleteFunc(slices.Clone(all), func(t *logpb.JoinToken) bool { return t.GetUsedBy() == "" })
		if len(used) == 0 {
			return nil, refuse(fsm.Precondition, "%d unused tokens exist: use or revoke some, or wait until they expire", len(all))
		}
		first := slices.MinFunc(used, func(a, b *logpb.JoinToken) int { return cmp.Compare(a.GetExpires(), b.GetExpires()) })
		all = slices.DeleteFunc(all, func(t *logpb.JoinToken) bool { return t == first })
	}
	at, _ := slices.BinarySearchFunc(all, m.GetHash(), byHash)
	ts.tokens = slices.Insert(all, at, &logpb.JoinToken{Hash: m.GetHash(), Expires: int64(clock) + int64(ttl), Node: m.GetNode()})
	return &logpb.CatalogResult{Changed: true}, nil
}

// delete takes a token back; one that is not there is fine. It performs
// DeleteJoinToken, whether the token was used or not. The node that it let in
// stays.
func (ts *joinTokens) delete(m *logpb.DeleteJoinToken) (*logpb.CatalogResult, error) {
	at, found := slices.BinarySearchFunc(ts.tokens, m.GetHash(), byHash)
	if !found {
		return &logpb.CatalogResult{}, nil
	}
	ts.tokens = slices.Delete(slices.Clone(ts.tokens), at, at+1)
	return &logpb.CatalogResult{Changed: true}, nil
}

// tokenExpired: a token is good as long as clock < expires.
func tokenExpired(t *logpb.JoinToken, clock fsm.Time) bool { return t.GetExpires() <= int64(clock) }

// after are the tokens when a node has been admitted at a time. A token that
// this node with this data folder has used is good for it until its time is over:
// the answer may have been lost.
//
// It changes nothing itself, so that the caller can still refuse for another
// reason. Without a token in m the result is ts: whoever proposes decides who
// needs none. A token for a name may be used by a node that is known by it,
// which then takes its place; one for any name only by a node that is not
// known.
func (ts *joinTokens) after(m *logpb.AdmitNode, clock fsm.Time, all *nodes) (joinTokens, error) {
	if len(m.GetToken()) == 0 {
		return *ts, nil
	}
	at, found := slices.BinarySearchFunc(ts.tokens, m.GetToken(), byHash)
	if !found || tokenExpired(ts.tokens[at], clock) {
		return joinTokens{}, refuse(fsm.AccessRefused, tokenUnknown)
	}
	t := ts.tokens[at]
	node, known := all.NodeByName(m.GetName())
	again := t.GetUsedBy() == m.GetName() && bytes.Equal(t.GetIdentity(), m.GetIdentity()) &&
		known && bytes.Equal(node.GetIdentity(), m.GetIdentity())
	switch {
	case again:
		return *ts, nil
	case t.GetUsedBy() != "": // or by this one, which was forgotten since
		return joinTokens{}, refuse(fsm.AccessRefused, tokenUsed)
	case t.GetNode() != "" && t.GetNode() != m.GetName():
		return joinTokens{}, refuse(fsm.AccessRefused, tokenElsewhere)
	case t.GetNode() == "" && known:
		return joinTokens{}, refuse(fsm.AccessRefused, tokenKnownName)
	}
	left := slices.Clone(ts.tokens)
	left[at] = &logpb.JoinToken{Hash: t.GetHash(), Expires: t.GetExpires(), Node: t.GetNode(), UsedBy: m.GetName(), Identity: m.GetIdentity()}
	return joinTokens{left}, nil
}

// equal reports whether nothing has changed since o. It compares records by
// identity: one that was used is another record.
func (ts *joinTokens) equal(o *joinTokens) bool { return slices.Equal(ts.tokens, o.tokens) }

// save is the section of the tokens in a snapshot, and restore its inverse.
func (ts *joinTokens) save(to *logpb.CatalogSnapshot)      { to.Tokens = ts.tokens }
func (ts *joinTokens) restore(from *logpb.CatalogSnapshot) { ts.tokens = from.GetTokens() }

func (ts *joinTokens) describe(b *strings.Builder) {
	for _, t := range ts.tokens {
		fmt.Fprintf(b, "join-token %x expires=%d node=%q used-by=%q\n", t.Hash[:4], t.Expires, t.Node, t.UsedBy)
	}
}

func (ts *joinTokens) check() error {
	if len(ts.tokens) > MaxJoinTokens {
		return fmt.Errorf("%d join tokens, at most %d", len(ts.tokens), MaxJoinTokens)
	}
	for i, t := range ts.tokens {
		switch {
		case len(t.GetHash()) != JoinTokenHashSize || i > 0 && byHash(ts.tokens[i-1], t.GetHash()) >= 0:
			return fmt.Errorf("join token %d, %x, is out of order", i, t.GetHash())
		case (t.GetUsedBy() == "") != (len(t.GetIdentity()) == 0) || t.GetNode() != "" && t.GetUsedBy() != "" && t.GetNode() != t.GetUsedBy():
			return fmt.Errorf("join token %x for node %q was used by %q with identity %x", t.GetHash(), t.GetNode(), t.GetUsedBy(), t.GetIdentity())
		}
	}
	return nil
}
