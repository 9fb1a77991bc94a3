package membership

import (
	"context"
	"encoding/hex"

	"github.com/quorate/quorate/cluster/certs"
	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

func tokenDetail(hash []byte) map[string]any {
	if len(hash) == 0 {
		return nil
	}
	return map[string]any{"token": tokenID(hash)}
}

// tokenID identifies a token without being a secret.
func tokenID(hash []byte) string { return hex.EncodeToString(hash[:min(len(hash), 8)]) }

// CreateToken creates a token that admits one node, which must have this name unless node is empty.
// An error that is a *fsm.Refusal is the caller's fault.
func (m *Membership) CreateToken(ctx context.Context, ttl fsm.Millis, node string) (api.JoinToken, error) {
	if node != "" {
		if err := certs.CheckNode(node); err != nil {
			return api.JoinToken{}, fsm.Refuse(fsm.Precondition, err.Error())
		}
	}
	var authority []byte
	if s := m.config.Security; s != nil {
		var err error
		if authority, err = s.Keys.Authority(); err != nil {
			return api.JoinToken{}, fsm.Refuse(fsm.Precondition, err.Error())
		}
	}
	t, err := certs.NewToken(authority)
	if err != nil {
		return api.JoinToken{}, err
	}
	err = m.members.propose(ctx, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutJoinToken{PutJoinToken: &logpb.PutJoinToken{
		Hash: t.Hash(), Ttl: uint64(max(ttl, 0)), Node: node,
	}}})
	return api.JoinToken{ID: tokenID(t.Hash()), Token: t.Text(), Node: node, TTL: int64(ttl)}, err
}

// Tokens lists the tokens that have not expired.
func (m *Membership) Tokens() []api.JoinToken {
	list, now := []api.JoinToken{}, m.members.now()
	for _, t := range m.catalog.View().JoinTokens() {
		if left := t.Expires - int64(now); left > 0 {
			list = append(list, api.JoinToken{ID: tokenID(t.Hash), Node: t.Node, UsedBy: t.UsedBy, TTL: left})
		}
	}
	return list
}

// RevokeToken revokes a token; false: there is none with this id.
func (m *Membership) RevokeToken(ctx context.Context, id string) (bool, error) {
	for _, t := range m.catalog.View().JoinTokens() {
		if tokenID(t.Hash) == id {
			return true, m.members.propose(ctx, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeleteJoinToken{
				DeleteJoinToken: &logpb.DeleteJoinToken{Hash: t.Hash},
			}})
		}
	}
	return false, nil
}
