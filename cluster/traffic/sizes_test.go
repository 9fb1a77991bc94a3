package traffic

import "testing"

// TestSizes: a size counts at the first bound that it does not exceed.
func TestSizes(t *testing.T) {
	table := NewTable()
	ch := table.Open("/", AMQP091, nil)
	var more Tally
	for _, bytes := range []int{0, 100, 101, 1_000, 100_000_000, 100_000_001} {
		more.Published("", bytes, 0, false)
	}
	table.Add(ch, &more)
	want := Sizes{Counts: [9]uint64{2, 2, 0, 0, 0, 0, 0, 1, 1}, Bytes: 200_001_202}
	if got := table.Totals().By[AMQP091].Sizes; got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}
