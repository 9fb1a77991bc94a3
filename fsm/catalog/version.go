package catalog

import (
	"fmt"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// FSMVersion is the version of all machines: this one is of it, and the leaders
// of queues stamp it on their entries. It is 1 at first and only rises. It
// takes effect within the entry that raises it, for the commands behind. It
// does not change what Apply compares with the entry's own version, which was
// before.
func (s *clusterSettings) FSMVersion() uint32 { return uint32(s.Setting(FSMVersion)) }

// SnapshotVersion is the version of the catalog that s was taken from. It needs
// no Restore, so a program that is too old can tell before it fails.
func SnapshotVersion(s *logpb.CatalogSnapshot) uint32 {
	for _, row := range s.GetSettings() {
		if row.GetName() == FSMVersion {
			return uint32(row.GetValue())
		}
	}
	return 1
}

// CheckVersions refuses a node whose program cannot be of the present version.
func (s *clusterSettings) CheckVersions(node string, supported fsm.Versions) error {
	if now := s.FSMVersion(); !supported.Include(now) {
		return refuse(fsm.Precondition, "the cluster's fsm_version is %d, and node %s supports %s", now, node, supported)
	}
	return nil
}

// CommonVersion is the newest version that all nodes have announced, and the
// name of a node that announces no later one. Without a node it is 1. Nodes
// that are admitted and have not registered announce nothing and count as 1;
// dead ones count as they last were. least is the one with the smallest number
// if several announce the same.
func (ns *nodes) CommonVersion() (version uint32, least string) {
	version = 1
	for i, n := range ns.Nodes() {
		if newest := fsm.Announced(n).Newest; i == 0 || newest < version {
			version, least = newest, n.GetName()
		}
	}
	return version, least
}

// checkRaise refuses to set a version that is not above the present one, or
// that not all nodes support. The present version itself is allowed, and
// changes nothing.
func (s *clusterSettings) checkRaise(m *logpb.PutSetting, all *nodes) error {
	now := s.FSMVersion()
	common, least := all.CommonVersion()
	switch value := m.GetValue(); {
	case m.GetUnset() || value < int64(now):
		return refuse(fsm.Precondition, "cluster setting '%s' is %d and cannot be lowered", FSMVersion, now)
	case value > int64(now) && value > int64(common):
		return refuse(fsm.Precondition, "cluster setting '%s' cannot be %d: node '%s' supports no more than %d", FSMVersion, value, least, common)
	}
	return nil
}

// checkVersions: the processes that have registered support the present
// version.
func (ns *nodes) checkVersions(s *clusterSettings) error {
	for _, n := range ns.Nodes() {
		if n.GetBoot() == 0 {
			continue // it is admitted, and has to register
		}
		if err := s.CheckVersions(n.GetName(), fsm.Announced(n)); err != nil {
			return fmt.Errorf("node %d: %w", n.GetNumber(), err)
		}
	}
	return nil
}
