package catalog

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"

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
	tokenUnknown   = "the token is none of this cluster's, was revoked, or its time is over"
	tokenUsed      = "the token was used"
	tokenElsewhere = "the token is for another node name"
	tokenKnownName = "a node with this name is known: only a token for just this name lets another one take its place"
)

// TokenRefused reports whether a refusal is one of a token.
func TokenRefused(err error) bool {
	r, ok := err.(*fsm.Refusal)
	return ok && slices.Contains([]string{tokenUnknown, tokenUsed, tokenElsewhere, tokenKnownName}, r.Text)
}

func byHash(t *logpb.JoinToken, hash []byte) int { return bytes.Compare(t.GetHash(), hash) }

// JoinTokens lists the tokens by their hashes, those included whose time has run
// out by now. Nobody may change it.
func (v *View) JoinTokens() []*logpb.JoinToken { return v.tokens }

// putJoinToken lets one more node in, for a time. Tokens whose time is over go,
// and if there are too many used ones do, too.
func (d *draft) putJoinToken(m *logpb.PutJoinToken) (*logpb.CatalogResult, error) {
	ttl := fsm.Millis(m.GetTtl())
	switch {
	case len(m.GetHash()) != JoinTokenHashSize:
		return nil, refuse(fsm.Internal, "the hash of a token has %d bytes", JoinTokenHashSize)
	case ttl < MinJoinTokenTTL || ttl > MaxJoinTokenTTL:
		return nil, refuse(fsm.Precondition, "a token is good for %d to %d ms, not for %d", MinJoinTokenTTL, MaxJoinTokenTTL, m.GetTtl())
	case len(m.GetNode()) > maxNodeName:
		return nil, refuse(fsm.Precondition, "a node's name has at most %d bytes", maxNodeName)
	}
	// Not in place: earlier views share the list.
	all := slices.DeleteFunc(slices.Clone(d.tokens), d.tokenExpired)
	if _, found := slices.BinarySearchFunc(all, m.GetHash(), byHash); found {
		return nil, refuse(fsm.Precondition, "there is such a token")
	}
	if len(all) >= MaxJoinTokens {
		used := slices.DeleteFunc(slices.Clone(all), func(t *logpb.JoinToken) bool { return t.GetUsedBy() == "" })
		if len(used) == 0 {
			return nil, refuse(fsm.Precondition, "%d tokens wait for nodes to join: use them, revoke some, or wait until their time is over", len(all))
		}
		first := slices.MinFunc(used, func(a, b *logpb.JoinToken) int { return cmp.Compare(a.GetExpires(), b.GetExpires()) })
		all = slices.DeleteFunc(all, func(t *logpb.JoinToken) bool { return t == first })
	}
	at, _ := slices.BinarySearchFunc(all, m.GetHash(), byHash)
	d.tokens = slices.Insert(all, at, &logpb.JoinToken{Hash: m.GetHash(), Expires: int64(d.clock) + int64(ttl), Node: m.GetNode()})
	return &logpb.CatalogResult{Changed: true}, nil
}

// deleteJoinToken takes a token back; one that is not there is fine.
func (d *draft) deleteJoinToken(m *logpb.DeleteJoinToken) (*logpb.CatalogResult, error) {
	at, found := slices.BinarySearchFunc(d.tokens, m.GetHash(), byHash)
	if !found {
		return &logpb.CatalogResult{}, nil
	}
	d.tokens = slices.Delete(slices.Clone(d.tokens), at, at+1)
	return &logpb.CatalogResult{Changed: true}, nil
}

func (v *View) tokenExpired(t *logpb.JoinToken) bool { return t.GetExpires() <= int64(v.clock) }

// CheckJoinToken says why a node would not be admitted by its token at a time.
func (v *View) CheckJoinToken(m *logpb.AdmitNode, now fsm.Time) error {
	at := *v
	at.clock = max(at.clock, now)
	_, err := at.tokensAfter(m)
	return err
}

// tokensAfter is the list of tokens when a node has been admitted. A token that
// this node with this data folder has used is good for it until its time is over:
// the answer may have been lost.
func (v *View) tokensAfter(m *logpb.AdmitNode) ([]*logpb.JoinToken, error) {
	if len(m.GetToken()) == 0 {
		return v.tokens, nil
	}
	at, found := slices.BinarySearchFunc(v.tokens, m.GetToken(), byHash)
	if !found || v.tokenExpired(v.tokens[at]) {
		return nil, refuse(fsm.AccessRefused, tokenUnknown)
	}
	t := v.tokens[at]
	node, known := v.NodeByName(m.GetName())
	again := t.GetUsedBy() == m.GetName() && bytes.Equal(t.GetIdentity(), m.GetIdentity()) &&
		known && bytes.Equal(node.GetIdentity(), m.GetIdentity())
	switch {
	case again:
		return v.tokens, nil
	case t.GetUsedBy() != "": // or by this one, which was forgotten since
		return nil, refuse(fsm.AccessRefused, tokenUsed)
	case t.GetNode() != "" && t.GetNode() != m.GetName():
		return nil, refuse(fsm.AccessRefused, tokenElsewhere)
	case t.GetNode() == "" && known:
		return nil, refuse(fsm.AccessRefused, tokenKnownName)
	}
	left := slices.Clone(v.tokens)
	left[at] = &logpb.JoinToken{Hash: t.GetHash(), Expires: t.GetExpires(), Node: t.GetNode(), UsedBy: m.GetName(), Identity: m.GetIdentity()}
	return left, nil
}

func (v *View) checkTokens() error {
	if len(v.tokens) > MaxJoinTokens {
		return fmt.Errorf("%d join tokens, at most %d", len(v.tokens), MaxJoinTokens)
	}
	for i, t := range v.tokens {
		switch {
		case len(t.GetHash()) != JoinTokenHashSize || i > 0 && byHash(v.tokens[i-1], t.GetHash()) >= 0:
			return fmt.Errorf("join token %d, %x, is out of order", i, t.GetHash())
		case (t.GetUsedBy() == "") != (len(t.GetIdentity()) == 0) || t.GetNode() != "" && t.GetUsedBy() != "" && t.GetNode() != t.GetUsedBy():
			return fmt.Errorf("join token %x for node %q was used by %q with identity %x", t.GetHash(), t.GetNode(), t.GetUsedBy(), t.GetIdentity())
		}
	}
	return nil
}
