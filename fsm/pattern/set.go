package pattern

// set is a set of bytes.
type set [4]uint64

func (s *set) has(b byte) bool { return s[b>>6]&(1<<(b&63)) != 0 }
func (s *set) add(b byte)      { s[b>>6] |= 1 << (b & 63) }

func (s *set) addRange(from, to byte) {
	for b := int(from); b <= int(to); b++ {
		s.add(byte(b))
	}
}

func (s *set) union(o set) {
	for i := range s {
		s[i] |= o[i]
	}
}

func (s set) inverse() set {
	for i := range s {
		s[i] = ^s[i]
	}
	return s
}

// fold adds the other case of each letter. Only ASCII has cases.
func (s *set) fold() {
	for b := byte('a'); b <= 'z'; b++ {
		if upper := b - 'a' + 'A'; s.has(b) || s.has(upper) {
			s.add(b)
			s.add(upper)
		}
	}
}

// setOf returns the bytes for which is reports true.
func setOf(is func(b byte) bool) (s set) {
	for b := range 256 {
		if is(byte(b)) {
			s.add(byte(b))
		}
	}
	return s
}

func between(b, from, to byte) bool { return from <= b && b <= to }

func isDigit(b byte) bool { return between(b, '0', '9') }
func isLower(b byte) bool { return between(b, 'a', 'z') }
func isUpper(b byte) bool { return between(b, 'A', 'Z') }
func isAlpha(b byte) bool { return isLower(b) || isUpper(b) }
func isAlnum(b byte) bool { return isAlpha(b) || isDigit(b) }
func isWord(b byte) bool  { return isAlnum(b) || b == '_' }
func isSpace(b byte) bool { return b == ' ' || between(b, '\t', '\r') }
func isHex(b byte) bool   { return isDigit(b) || between(b, 'a', 'f') || between(b, 'A', 'F') }
func isGraph(b byte) bool { return between(b, '!', '~') }

// posix are the classes with names.
var posix = map[string]set{
	"alnum": setOf(isAlnum), "alpha": setOf(isAlpha), "ascii": setOf(func(b byte) bool { return b < 128 }),
	"blank": setOf(func(b byte) bool { return b == ' ' || b == '\t' }), "cntrl": setOf(func(b byte) bool { return b < ' ' || b == 127 }),
	"digit": setOf(isDigit), "graph": setOf(isGraph), "lower": setOf(isLower),
	"print": setOf(func(b byte) bool { return b == ' ' || isGraph(b) }),
	"punct": setOf(func(b byte) bool { return isGraph(b) && !isAlnum(b) }),
	"space": setOf(isSpace), "upper": setOf(isUpper), "word": setOf(isWord), "xdigit": setOf(isHex),
}

// shorthands are the classes of one letter; the capital one is the inverse.
var shorthands = map[byte]set{
	'd': posix["digit"], 'w': posix["word"], 's': posix["space"],
	'h': setOf(func(b byte) bool { return b == ' ' || b == '\t' || b == 0xa0 }),
	'v': setOf(func(b byte) bool { return between(b, '\n', '\r') || b == 0x85 }),
}

// shorthand returns the set of \d and its like.
func shorthand(letter byte) (set, bool) {
	if s, ok := shorthands[letter]; ok {
		return s, true
	}
	s, ok := shorthands[letter-'A'+'a']
	return s.inverse(), ok && isUpper(letter)
}
