package wire

// PartitionOf gives the partition of a key as Kafka's Java client does by
// default: murmur2 of the key, its sign bit cleared, modulo the number of
// partitions. It is 0 where there are none.
func PartitionOf(key string, partitions int32) int32 {
	if partitions <= 0 {
		return 0
	}
	return int32(murmur2(key)&0x7fffffff) % partitions
}

// murmur2 is MurmurHash2 as in org.apache.kafka.common.utils.Utils, seed
// included.
func murmur2(s string) uint32 {
	const (
		seed = 0x9747b28c
		m    = 0x5bd1e995
		r    = 24
	)
	h := uint32(seed) ^ uint32(len(s))
	for len(s) >= 4 {
		k := uint32(s[0]) | uint32(s[1])<<8 | uint32(s[2])<<16 | uint32(s[3])<<24
		k *= m
		k ^= k >> r
		k *= m
		h = h*m ^ k
		s = s[4:]
	}
	switch len(s) {
	case 3:
		h ^= uint32(s[2]) << 16
		fallthrough
	case 2:
		h ^= uint32(s[1]) << 8
		fallthrough
	case 1:
		h ^= uint32(s[0])
		h *= m
	}
	h ^= h >> 13
	h *= m
	h ^= h >> 15
	return h
}
