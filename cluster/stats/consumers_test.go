package stats

import (
	"testing"

	"github.com/quorate/quorate/cluster/group/grouptest"
	"github.com/quorate/quorate/fsm/queue"
)

// The credit of a consumer that takes by credit is listed, also if it is 0; others have none.
func TestListedCredit(t *testing.T) {
	v := grouptest.NewCatalog(t).View()
	for _, c := range []queue.ConsumerCredit{{}, {CreditMode: true}, {CreditMode: true, DeliveryCount: 7, Credit: 3}} {
		got := consumerFrom(v, describeConsumer(1, &queue.Consumer{Tag: "c", ConsumerCredit: c}, 0, false), nil).LinkCredit
		if (got != nil) != c.CreditMode || got != nil && *got != c.Credit {
			t.Errorf("%+v is listed as %v", c, got)
		}
	}
}
