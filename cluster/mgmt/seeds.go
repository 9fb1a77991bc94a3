package mgmt

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/quorate/quorate/cluster/login"
	"github.com/quorate/quorate/cluster/tables"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/fsm/pattern"
	"github.com/quorate/quorate/proto/logpb"
)

// Seeds are what new vhosts get besides their names. Existing ones are never changed by them. A nil *Seeds has none.
type Seeds struct {
	// Limits of vhosts by their names. Those of the first seed that matches a vhost apply.
	Limits []LimitSeed
	// Policies are operator policies. Of a vhost they are all that match it, as are the users.
	Policies []PolicySeed
	Users    []UserSeed
}

// VHosts is a regular expression that the name of a vhost has to match somewhere; empty: all do.
type VHosts string

// LimitSeed are limits of vhosts.
type LimitSeed struct {
	VHosts VHosts
	Limits map[string]int64
}

// PolicySeed is an operator policy.
type PolicySeed struct {
	VHosts     VHosts
	Policy     *logpb.PutPolicy // without a vhost
	Definition map[string]any   // as JSON has it
}

// UserSeed is a user with permissions in a vhost. One that exists keeps password and tags.
type UserSeed struct {
	VHosts     VHosts
	Password   string // empty: the user cannot log in by one
	Tags       []string
	Permission *logpb.PutPermission // without a vhost
}

func (p VHosts) match(vhost string) (bool, error) {
	re, err := pattern.Compile(string(p))
	return err == nil && re.Match(vhost), err
}

// For returns the commands that seed a new vhost. What the view has of it already stays.
func (s *Seeds) For(v *catalog.View, vhost string) (list []*logpb.CatalogCommand, err error) {
	if s == nil {
		return nil, nil
	}
	for _, l := range s.Limits {
		if ok, err := l.VHosts.match(vhost); err != nil {
			return nil, err
		} else if !ok {
			continue
		}
		_, given := limitsOf(v, false)
		for _, name := range slices.Sorted(maps.Keys(l.Limits)) {
			if _, there := given[vhost][name]; there {
				continue
			}
			list = append(list, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutLimit{PutLimit: &logpb.PutLimit{Of: vhost, Name: name, Value: l.Limits[name]}}})
		}
		break
	}
	for _, p := range s.Policies {
		ok, err := p.VHosts.match(vhost)
		if err != nil {
			return nil, err
		}
		if _, there := v.Policy(vhost, p.Policy.GetName(), true); ok && !there {
			m := &logpb.PutPolicy{Vhost: vhost, Name: p.Policy.GetName(), Pattern: p.Policy.GetPattern(), ApplyTo: p.Policy.GetApplyTo(), Definition: tables.Of(p.Definition), Operator: true}
			_ = v.ValidatePolicy(m) // decides the dialect; that there is no such vhost yet is no reason against it
			list = append(list, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutPolicy{PutPolicy: m}})
		}
	}
	made := map[string]bool{}
	for _, u := range s.Users {
		ok, err := u.VHosts.match(vhost)
		if err != nil {
			return nil, err
		} else if !ok {
			continue
		}
		p := u.Permission
		if _, there := v.User(p.GetUser()); !there && !made[p.GetUser()] {
			m := &logpb.PutUser{Name: p.GetUser(), Tags: u.Tags, HashAlgorithm: login.HashAlgorithm}
			if u.Password != "" {
				m.PasswordHash = login.HashPassword(u.Password)
			}
			list = append(list, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutUser{PutUser: m}})
			made[p.GetUser()] = true
		}
		if _, there := v.Permission(p.GetUser(), vhost); there {
			continue
		}
		m := &logpb.PutPermission{User: p.GetUser(), Vhost: vhost, Configure: p.GetConfigure(), Write: p.GetWrite(), Read: p.GetRead()}
		list = append(list, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutPermission{PutPermission: m}})
	}
	return list, nil
}

// Check reports what keeps a new vhost from being seeded, whatever its name.
func (s *Seeds) Check() error {
	if s == nil {
		return nil
	}
	all := Seeds{}
	for _, l := range s.Limits {
		if _, err := l.VHosts.match(""); err != nil {
			return err
		}
		one := Seeds{Limits: []LimitSeed{{Limits: l.Limits}}}
		if err := one.try(); err != nil {
			return err
		}
	}
	for _, p := range s.Policies {
		if _, err := p.VHosts.match(""); err != nil {
			return err
		}
		p.VHosts = ""
		all.Policies = append(all.Policies, p)
	}
	for _, u := range s.Users {
		if _, err := u.VHosts.match(""); err != nil {
			return err
		}
		u.VHosts, u.Password = "", ""
		all.Users = append(all.Users, u)
	}
	return all.try()
}

// try seeds a vhost of an empty catalog.
func (s *Seeds) try() error {
	const vhost = "/"
	c := &catalog.Catalog{}
	newest := &logpb.RegisterNode{Name: "n1", Incarnation: []byte("1"), OldestVersion: fsm.OldestVersion, NewestVersion: fsm.NewestVersion}
	_ = c.Apply(1, &logpb.CatalogEntry{Version: 1, Commands: []*logpb.CatalogCommand{
		{Body: &logpb.CatalogCommand_RegisterNode{RegisterNode: newest}},
		{Body: &logpb.CatalogCommand_PutSetting{PutSetting: &logpb.PutSetting{Name: catalog.FSMVersion, Value: fsm.NewestVersion}}},
		{Body: &logpb.CatalogCommand_PutVhost{PutVhost: &logpb.PutVhost{Name: vhost}}},
	}})
	commands, err := s.For(c.View(), vhost)
	for i, r := range c.Apply(2, &logpb.CatalogEntry{Version: fsm.NewestVersion, Commands: commands}) {
		if err == nil {
			err = catalog.Refused(r)
		}
		if m := commands[i].GetPutPolicy(); err == nil && m != nil {
			err = c.View().ValidatePolicy(m)
		}
		if m := commands[i].GetPutPermission(); m != nil {
			for _, p := range []string{m.Configure, m.Write, m.Read} {
				if err == nil {
					err = c.View().ValidatePattern(p)
				}
			}
		}
	}
	return err
}

// sow seeds vhosts, those of before excepted.
func (s *Seeds) sow(ctx context.Context, to Catalog, before *catalog.View) error {
	if s == nil {
		return nil
	}
	for _, vh := range to.View().VHosts() {
		if _, there := before.VHost(vh.GetName()); there {
			continue
		}
		if err := s.Sow(ctx, to, vh.GetName()); err != nil {
			return err
		}
	}
	return nil
}

// Sow seeds a new vhost.
func (s *Seeds) Sow(ctx context.Context, to Catalog, vhost string) error {
	commands, err := s.For(to.View(), vhost)
	if err == nil && len(commands) > 0 {
		err = propose(ctx, to, commands...)
	}
	if err != nil {
		return fmt.Errorf("defaults for vhost '%s' could not be applied: %w", vhost, err)
	}
	return nil
}
