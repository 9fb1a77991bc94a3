package mgmt

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"runtime"

	"github.com/quorate/quorate/cluster/mgmt/api"
)

// memory serves what the memory of a node is used for.
type memory struct {
	node    Node
	cluster Cluster
}

// get answers by Go's own accounts for the node that is asked, and by one number for others.
func (m memory) get(w *responder, r *request) {
	name := r.PathValue("node")
	for _, n := range m.cluster.Nodes(r.Context()) {
		if n.Name != name {
			continue
		}
		used := uint64(max(n.MemoryUsed, 0))
		use := api.MemoryUse{Strategy: "rss", OtherSystem: used, Total: api.MemoryTotal{RSS: used, Allocated: used, Runtime: used}}
		if m.node.Status().Node == name {
			use = ownMemory(used)
		}
		w.answer(http.StatusOK, api.Memory{Memory: use})
		return
	}
	w.notFound()
}

// ownMemory is that of this process. rss is what the system counts.
func ownMemory(rss uint64) api.MemoryUse {
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	return api.MemoryUse{
		OtherProc: s.StackInuse, Binary: s.HeapAlloc, OtherSystem: s.GCSys + s.OtherSys + s.MSpanSys + s.MCacheSys + s.BuckHashSys,
		AllocatedUnused: s.HeapInuse - s.HeapAlloc, ReservedUnallocated: s.HeapIdle - s.HeapReleased, Strategy: "rss",
		Total: api.MemoryTotal{RSS: rss, Allocated: s.Sys - s.HeapReleased, Runtime: s.HeapAlloc + s.StackInuse},
	}
}

// hashPassword makes a hash as RabbitMQ's definitions have: a salt of 4 bytes, and the SHA-256 of it
// and the password.
func hashPassword(w *responder, r *request) {
	var salt [4]byte
	rand.Read(salt[:])
	sum := sha256.Sum256(append(salt[:], r.PathValue("password")...))
	w.answer(http.StatusOK, map[string]string{"ok": base64.StdEncoding.EncodeToString(append(salt[:], sum[:]...))})
}
