/* Numbers of the types that NCCL knows, and what several ranks' become together. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { INT8, UINT8, INT32, UINT32, INT64, UINT64, HALF, FLOAT, DOUBLE, BFLOAT };
enum { SUM, PRODUCT, MAXIMUM, MINIMUM, AVERAGE };

static const size_t widths[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};

static float of_bits(uint32_t bits) {
  float number;
  memcpy(&number, &bits, 4);
  return number;
}

static uint32_t bits_of(float number) {
  uint32_t bits;
  memcpy(&bits, &number, 4);
  return bits;
}

static float from_bfloat(uint16_t bits) { return of_bits((uint32_t)bits << 16); }

static uint16_t to_bfloat(float number) {
  uint32_t bits = bits_of(number);
  if (number != number) return 0x7FC0;
  return (uint16_t)((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

static float from_half(uint16_t half) {
  uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = (half >> 10) & 31, rest = half & 0x3FF;
  if (exponent == 31) return of_bits(sign | 0x7F800000 | rest << 13);
  if (exponent) return of_bits(sign | (exponent + 112) << 23 | rest << 13);
  float small = (float)rest / 16777216.0f;
  return sign ? -small : small;
}

static uint16_t to_half(float number) {
  uint32_t bits = bits_of(number), sign = (bits >> 16) & 0x8000, rest = bits & 0x7FFFFFFF;
  if (rest > 0x7F800000) return (uint16_t)(sign | 0x7E00);
  if (rest >= 0x477FF000) return (uint16_t)(sign | 0x7C00);
  if (rest < 0x38800000) return (uint16_t)(sign | (bits_of(of_bits(rest) + 0.5f) - 0x3F000000));
  return (uint16_t)(sign | ((rest - 0x38000000 + 0xFFF + ((rest >> 13) & 1)) >> 13));
}

#define SAME(number) (number)
#define COMBINE(TYPE, NUMBER, FROM, TO)                            \
  for (size_t k = 0; k < count; k++) {                             \
    NUMBER total = FROM(((TYPE *)from)[k]);                        \
    for (int rank = 1; rank < ranks; rank++) {                     \
      NUMBER other = FROM(((TYPE *)(from + rank * apart))[k]);     \
      if (how == SUM || how == AVERAGE) total += other;            \
      else if (how == PRODUCT) total *= other;                     \
      else if ((how == MAXIMUM) == (other > total)) total = other; \
    }                                                              \
    ((TYPE *)to)[k] = TO(how == AVERAGE ? total / ranks : total);  \
  }                                                                \
  break;

/* Put together what ranks have, each so many bytes after the one before, in their order. */
static void combine(void *to, const char *from, size_t apart, int ranks, size_t count, int type, int how) {
  switch (type) {
    case INT8: COMBINE(int8_t, int8_t, SAME, SAME)
    case UINT8: COMBINE(uint8_t, uint8_t, SAME, SAME)
    case INT32: COMBINE(int32_t, int64_t, SAME, (int32_t))
    case UINT32: COMBINE(uint32_t, uint32_t, SAME, SAME)
    case INT64: COMBINE(int64_t, int64_t, SAME, SAME)
    case UINT64: COMBINE(uint64_t, uint64_t, SAME, SAME)
    case HALF: COMBINE(uint16_t, float, from_half, to_half)
    case FLOAT: COMBINE(float, float, SAME, SAME)
    case DOUBLE: COMBINE(double, double, SAME, SAME)
    case BFLOAT: COMBINE(uint16_t, float, from_bfloat, to_bfloat)
  }
}
