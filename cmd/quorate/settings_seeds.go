package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/quorate/quorate/cluster/mgmt"
	"github.com/quorate/quorate/proto/logpb"
)

// seedSettings are what the settings default_users, default_limits and default_policies say, by the names in
// their keys.
type seedSettings struct {
	users    map[string]*mgmt.UserSeed
	limits   map[string]*mgmt.LimitSeed
	policies map[string]*mgmt.PolicySeed
}

// seeds returns what new vhosts get, in the order of the names; nil: nothing.
func (s *seedSettings) seeds() *mgmt.Seeds {
	all := &mgmt.Seeds{}
	for _, name := range slices.Sorted(maps.Keys(s.users)) {
		all.Users = append(all.Users, *s.users[name])
	}
	for _, name := range slices.Sorted(maps.Keys(s.limits)) {
		all.Limits = append(all.Limits, *s.limits[name])
	}
	for _, name := range slices.Sorted(maps.Keys(s.policies)) {
		all.Policies = append(all.Policies, *s.policies[name])
	}
	if len(all.Users)+len(all.Limits)+len(all.Policies) == 0 {
		return nil
	}
	return all
}

// nameAndKey splits what follows the prefix of a key: a name, which may have dots, and the last word.
func nameAndKey(key, prefix string) (name, last string) {
	rest := strings.TrimPrefix(key, prefix)
	at := strings.LastIndexByte(rest, '.')
	return rest[:at], rest[at+1:]
}

// of returns the value of a key, which is made if it is not there.
func of[T any](all *map[string]*T, name string, first func() *T) *T {
	if *all == nil {
		*all = map[string]*T{}
	}
	if (*all)[name] == nil {
		(*all)[name] = first()
	}
	return (*all)[name]
}

func seedUser(s *settings, key, v string) (err error) {
	name, last := nameAndKey(key, "default_users.")
	u := of(&s.seed.users, name, func() *mgmt.UserSeed {
		return &mgmt.UserSeed{Permission: &logpb.PutPermission{User: name, Configure: ".*", Write: ".*", Read: ".*"}}
	})
	switch last {
	case "vhost_pattern":
		u.VHosts = mgmt.VHosts(v)
	case "password":
		u.Password, s.secret = v, key
	case "tags":
		u.Tags, err = words(v)
	case "configure":
		u.Permission.Configure = v
	case "write":
		u.Permission.Write = v
	case "read":
		u.Permission.Read = v
	default:
		return fmt.Errorf("%s is not one of password, tags, vhost_pattern, configure, write, read", last)
	}
	return err
}

func seedLimit(s *settings, key, v string) error {
	name, last := nameAndKey(key, "default_limits.vhosts.")
	l := of(&s.seed.limits, name, func() *mgmt.LimitSeed { return &mgmt.LimitSeed{Limits: map[string]int64{}} })
	switch last {
	case "pattern":
		l.VHosts = mgmt.VHosts(v)
	case "max_connections", "max_queues":
		var n int
		if err := number(-1, 1<<31-1, func(*settings) *int { return &n })(s, v); err != nil {
			return err
		}
		l.Limits[strings.ReplaceAll(last, "_", "-")] = int64(n)
	default:
		return fmt.Errorf("%s is not one of pattern, max_connections, max_queues", last)
	}
	return nil
}

func seedPolicy(s *settings, key, v string) error {
	name, last := nameAndKey(key, "default_policies.operator.")
	name = strings.TrimSuffix(name, ".classic_queues")
	p := of(&s.seed.policies, name, func() *mgmt.PolicySeed {
		return &mgmt.PolicySeed{Policy: &logpb.PutPolicy{Name: name, Pattern: ".*", ApplyTo: "all"}, Definition: map[string]any{}}
	})
	switch last {
	case "vhost_pattern":
		p.VHosts = mgmt.VHosts(v)
	case "queue_pattern":
		p.Policy.Pattern = v
	case "apply_to":
		p.Policy.ApplyTo = v
	case "ha_mode", "ha_params", "ha_sync_mode":
		s.tell(key, noMirrors)
	case "max_in_memory_length", "max_in_memory_bytes":
		s.tell(key, "bodies of messages are on disk")
	case "queue_version":
		s.tell(key, ownStore)
	case "expires", "message_ttl", "max_length", "max_length_bytes", "delivery_limit":
		var n int
		if err := number(-1, 1<<53, func(*settings) *int { return &n })(s, v); err != nil {
			return err
		}
		p.Definition[strings.ReplaceAll(last, "_", "-")] = json.Number(v)
	default:
		return fmt.Errorf("%s is not a key of operator policies", last)
	}
	return nil
}

// checkSeeds reports what would keep vhosts from being created.
func (s *settings) checkSeeds() error {
	for name, p := range s.seed.policies {
		if len(p.Definition) == 0 {
			delete(s.seed.policies, name) // of what it says nothing has an effect
		}
	}
	if err := s.seed.seeds().Check(); err != nil {
		return fmt.Errorf("settings default_users, default_limits and default_policies: %w", err)
	}
	return nil
}
