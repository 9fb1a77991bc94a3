package queues

import (
	"bytes"
	"testing"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
	"github.com/quorate/quorate/proto/peerpb"
)

// Who looks at a message sees what receivers have added to it, as who is handed it does.
func TestPeekedHasAnnotations(t *testing.T) {
	added := []*logpb.Annotation{{Key: []byte("\xa3\x03x-a"), Value: []byte("\x40")}}
	x := &queue.Message{Seq: 7, Annotations: added}
	list, err := peekedFrom(&catalog.Queue{}, []*peerpb.Peeked{peeked(x, fsm.AppendPayloadHead(nil, "", "q", nil))})
	if err != nil || len(list) != 1 || list[0].Number != 7 || !bytes.Equal(list[0].Annotations, fsm.AnnotationMap(added)) {
		t.Errorf("%v, %v", list, err)
	}
}
