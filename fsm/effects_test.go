package fsm

import (
	"iter"
	"reflect"
	"testing"
)

// No kind of effect is forgotten when effects are added up, looked for or dropped.
func TestEffects(t *testing.T) {
	kinds := reflect.TypeFor[Effects]()
	for i := range kinds.NumField() {
		name := kinds.Field(i).Name
		var one, sum Effects
		switch f := reflect.ValueOf(&one).Elem().Field(i); f.Kind() {
		case reflect.Slice:
			f.Set(reflect.MakeSlice(f.Type(), 2, 2))
		case reflect.Bool:
			f.SetBool(true)
		case reflect.Func:
			f.Set(reflect.ValueOf(iter.Seq[uint64](func(func(uint64) bool) {})))
		default:
			t.Fatalf("%s is a %s", name, f.Kind())
		}
		if one.Empty() || !sum.Empty() {
			t.Errorf("%s: empty with it %v, without %v", name, one.Empty(), sum.Empty())
		}
		sum.Add(&one)
		sum.Add(&Effects{}) // takes nothing away
		if got := reflect.ValueOf(sum).Field(i); got.IsZero() || got.Kind() == reflect.Slice && got.Len() != 2 {
			t.Errorf("%s is not added", name)
		}
		if sum.Reset(); !sum.Empty() {
			t.Errorf("%s is left", name)
		}
	}
}
