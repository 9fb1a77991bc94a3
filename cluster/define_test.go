package cluster

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/quorate/quorate/fsm"
)

// BenchmarkDefine makes queues and bindings, at all nodes in turn.
func BenchmarkDefine(b *testing.B) {
	c := mustCluster(b)
	var number atomic.Int64
	for _, clients := range []int{1, 32} {
		all := make([]*client, clients)
		for i := range all {
			all[i] = c.mustClient(names[i%len(names)])
		}
		c.mustClient("n1").mustDeclare("bound")
		for what, define := range map[string]func(*client, string) error{
			"declare": func(cl *client, name string) error {
				_, err := cl.session.DeclareQueue(context.Background(), fsm.QueueSpec{Name: name, Durable: true})
				return err
			},
			"bind": func(cl *client, name string) error {
				return cl.session.Bind(context.Background(), fsm.BindSpec{Source: "amq.direct", Destination: "bound", RoutingKey: name})
			},
		} {
			b.Run(fmt.Sprintf("%s/clients=%d", what, clients), func(b *testing.B) {
				var wait sync.WaitGroup
				var left atomic.Int64
				left.Store(int64(b.N))
				for _, cl := range all {
					wait.Go(func() {
						for left.Add(-1) >= 0 {
							if err := define(cl, fmt.Sprint("d", number.Add(1))); err != nil {
								b.Error(err)
							}
						}
					})
				}
				wait.Wait()
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), what+"s/s")
			})
		}
	}
}
