package com.cloudflare.app.boringtun;

import static com.cloudflare.app.boringtun.BoringTunJNI.MAX_WIREGUARD_PACKET_SIZE;
import static com.cloudflare.app.boringtun.BoringTunJNI.WIREGUARD_DONE;
import static com.cloudflare.app.boringtun.BoringTunJNI.WIREGUARD_ERROR;
import static com.cloudflare.app.boringtun.BoringTunJNI.WRITE_TO_NETWORK;
import static com.cloudflare.app.boringtun.BoringTunJNI.WRITE_TO_TUNNEL_IPV4;
import static com.cloudflare.app.boringtun.BoringTunJNI.WRITE_TO_TUNNEL_IPV6;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

/** Tests of two tunnels in one process that are each other's peers. */
class BoringTunJNITest {
    private static final int DESTINATION_BUFFER_TOO_SMALL = 0;
    private static final int INITIATION = 148;
    private static final int RESPONSE = 92;
    private static final int KEEPALIVE = 32;
    private static final byte[] NOTHING = new byte[0];

    private final List<Side> sides = new ArrayList<>();

    @AfterEach
    void freeTunnels() {
        sides.forEach(side -> BoringTunJNI.tunnel_free(side.tunnel));
    }

    /** RFC 7748 §6.1. */
    @Test
    void keysAreThoseOfX25519() {
        byte[] alice = bytes("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a");
        String itsPublic = "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a";
        byte[] computed = BoringTunJNI.x25519_public_key(alice);
        assertEquals(itsPublic, BoringTunJNI.x25519_key_to_hex(computed));
        assertEquals(
                "hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo=",
                BoringTunJNI.x25519_key_to_base64(computed));
        byte[] fresh = BoringTunJNI.x25519_secret_key();
        assertEquals(32, fresh.length);
        assertFalse(Arrays.equals(fresh, BoringTunJNI.x25519_secret_key()));
    }

    @Test
    void keysOfAnotherLengthAreNone() {
        for (byte[] key : new byte[][] {null, NOTHING, new byte[31]}) {
            assertNull(BoringTunJNI.x25519_public_key(key));
            assertNull(BoringTunJNI.x25519_key_to_hex(key));
            assertNull(BoringTunJNI.x25519_key_to_base64(key));
        }
    }

    @Test
    void malformedKeysMakeNoTunnel() {
        String whole = BoringTunJNI.x25519_key_to_base64(BoringTunJNI.x25519_secret_key());
        String cut = whole.substring(0, 40);
        assertEquals(0, BoringTunJNI.new_tunnel(null, whole, null, (short) 0, 0));
        assertEquals(0, BoringTunJNI.new_tunnel(whole, null, null, (short) 0, 0));
        assertEquals(0, BoringTunJNI.new_tunnel(cut, whole, null, (short) 0, 0));
        assertEquals(0, BoringTunJNI.new_tunnel(whole, cut, null, (short) 0, 0));
        assertEquals(0, BoringTunJNI.new_tunnel(whole, whole, cut, (short) 0, 0));
        assertEquals(0, BoringTunJNI.new_tunnel(whole, whole, "\u0000\uD800", (short) 0, 0));
        // Characters whose low eight bits are digits, and a key with one character too many.
        String wide = "\u0131".repeat(64);
        assertEquals(0, BoringTunJNI.new_tunnel(wide, whole, null, (short) 0, 0));
        assertEquals(0, BoringTunJNI.new_tunnel("0".repeat(65), whole, null, (short) 0, 0));
        assertEquals(0, BoringTunJNI.new_tunnel("\u00e9".repeat(64), whole, null, (short) 0, 0));
    }

    @Test
    void handshakeAndPacketsBothWays() {
        Side[] pair = pair(null, null);
        shakeHands(pair[0], pair[1], ipv4(60));
        for (int length : new int[] {28, 576, 1420}) {
            carry(pair[0], pair[1], ipv4(length), WRITE_TO_TUNNEL_IPV4);
            carry(pair[1], pair[0], ipv6(length + 20), WRITE_TO_TUNNEL_IPV6);
        }
    }

    @Test
    void presharedKeysMustBeTheSame() {
        String one = BoringTunJNI.x25519_key_to_hex(BoringTunJNI.x25519_secret_key());
        String other = BoringTunJNI.x25519_key_to_base64(BoringTunJNI.x25519_secret_key());
        Side[] same = pair(one, one);
        shakeHands(same[0], same[1], ipv4(28));

        Side[] different = pair(one, other);
        byte[] initiation = different[0].writes(ipv4(28), WRITE_TO_NETWORK);
        byte[] response = different[1].reads(initiation, WRITE_TO_NETWORK);
        different[0].reads(response, WIREGUARD_ERROR);
    }

    @Test
    void handshakesAreBegunOnRequestAndByTicks() {
        Side[] pair = pair(null, null);
        Side side = pair[0];
        int size = BoringTunJNI.wireguard_tick(side.tunnel, side.dst, INITIATION, side.op);
        side.took(WIREGUARD_DONE, 0, size);
        size = BoringTunJNI.wireguard_force_handshake(side.tunnel, side.dst, INITIATION, side.op);
        byte[] initiation = side.took(WRITE_TO_NETWORK, INITIATION, size);
        pair[1].reads(initiation, WRITE_TO_NETWORK);
    }

    @Test
    void whatDoesNotFitIsRefusedWhole() {
        Side[] pair = pair(null, null);
        Side side = pair[0];
        byte[] packet = ipv4(28);
        // Too short by the size passed, and by its capacity.
        int size = side.write(packet, packet.length, INITIATION - 1);
        assertEquals(DESTINATION_BUFFER_TOO_SMALL, side.error(size));
        Side small = new Side(side.tunnel, INITIATION - 1);
        size = small.write(packet, packet.length, MAX_WIREGUARD_PACKET_SIZE);
        assertEquals(DESTINATION_BUFFER_TOO_SMALL, small.error(size));
        size = side.write(packet, packet.length, -1);
        assertEquals(DESTINATION_BUFFER_TOO_SMALL, side.error(size));
        // More bytes than the array has.
        side.error(side.write(packet, packet.length + 1, INITIATION));
        side.error(side.write(packet, -1, INITIATION));
        side.error(side.write(null, 28, INITIATION));
        // No destination, and no buffer for the operation.
        ByteBuffer onTheHeap = ByteBuffer.allocate(INITIATION);
        side.op.put(0, (byte) 77);
        long tunnel = side.tunnel;
        size = BoringTunJNI.wireguard_write(tunnel, packet, 28, onTheHeap, INITIATION, side.op);
        assertEquals(DESTINATION_BUFFER_TOO_SMALL, side.error(size));
        assertEquals(0, BoringTunJNI.wireguard_write(tunnel, packet, 28, side.dst, INITIATION, onTheHeap));
        assertEquals(0, BoringTunJNI.wireguard_tick(tunnel, null, INITIATION, null));
        // The tunnel still works after these errors.
        shakeHands(pair[0], pair[1], packet);
    }

    @Test
    void errorsHaveTheNumbersThatAreChosen() {
        Side side = pair(null, null)[0];
        byte[] garbage = {9, 0, 0, 0};
        assertEquals(12, side.error(side.read(garbage, garbage.length)));
        assertTrue(BoringTunJNI.set_numbering(side.tunnel, BoringTunJNI.NUMBERING_0_5));
        assertEquals(11, side.error(side.read(garbage, garbage.length)));
        // A packet beyond the maximum gets the same error before it reaches the tunnel.
        assertEquals(11, side.error(side.write(new byte[200_000], 200_000, MAX_WIREGUARD_PACKET_SIZE)));
        assertTrue(BoringTunJNI.set_numbering(side.tunnel, BoringTunJNI.NUMBERING_0_6));
        assertEquals(12, side.error(side.read(garbage, garbage.length)));
        assertFalse(BoringTunJNI.set_numbering(side.tunnel, 2));
        assertFalse(BoringTunJNI.set_numbering(side.tunnel, -1));
        assertFalse(BoringTunJNI.set_numbering(0, BoringTunJNI.NUMBERING_0_5));
    }

    @Test
    void tunnelsThatAreNoneAreErrors() {
        Side side = pair(null, null)[0];
        BoringTunJNI.tunnel_free(side.tunnel);
        BoringTunJNI.tunnel_free(side.tunnel);
        for (long tunnel : new long[] {0, -1, 4096, side.tunnel}) {
            Side none = new Side(tunnel, MAX_WIREGUARD_PACKET_SIZE);
            none.error(none.write(ipv4(28), 28, MAX_WIREGUARD_PACKET_SIZE));
            none.error(none.read(NOTHING, 0));
            none.error(BoringTunJNI.wireguard_tick(tunnel, none.dst, INITIATION, none.op));
            none.error(BoringTunJNI.wireguard_force_handshake(tunnel, none.dst, INITIATION, none.op));
        }
    }

    @Test
    void threadsShareATunnel() throws Exception {
        Side[] pair = pair(null, null);
        shakeHands(pair[0], pair[1], ipv4(28));
        int threads = 4;
        int packets = 200;
        ExecutorService pool = Executors.newFixedThreadPool(threads);
        try {
            List<Callable<List<byte[]>>> work = new ArrayList<>();
            for (int i = 0; i < threads; i++) {
                Side own = new Side(pair[0].tunnel, MAX_WIREGUARD_PACKET_SIZE);
                work.add(
                        () -> {
                            List<byte[]> sent = new ArrayList<>();
                            for (int j = 0; j < packets; j++) {
                                sent.add(own.writes(ipv4(60), WRITE_TO_NETWORK));
                            }
                            return sent;
                        });
            }
            int received = 0;
            for (Future<List<byte[]>> sent : pool.invokeAll(work)) {
                for (byte[] datagram : sent.get()) {
                    // Every message must arrive: if two threads had used one counter, a message
                    // would be refused as a replay.
                    assertArrayEquals(ipv4(60), pair[1].reads(datagram, WRITE_TO_TUNNEL_IPV4));
                    received++;
                }
            }
            assertEquals(threads * packets, received);
        } finally {
            pool.shutdownNow();
        }
    }

    /** Returns two tunnels that are each other's peers, with these preshared keys. */
    private Side[] pair(String preshared, String othersPreshared) {
        byte[] alice = BoringTunJNI.x25519_secret_key();
        byte[] bob = BoringTunJNI.x25519_secret_key();
        return new Side[] {tunnel(alice, bob, preshared, 1), tunnel(bob, alice, othersPreshared, 2)};
    }

    private Side tunnel(byte[] own, byte[] peer, String preshared, int index) {
        String secret = BoringTunJNI.x25519_key_to_base64(own);
        String other = BoringTunJNI.x25519_key_to_hex(BoringTunJNI.x25519_public_key(peer));
        long tunnel = BoringTunJNI.new_tunnel(secret, other, preshared, (short) 0, index);
        assertNotEquals(0, tunnel);
        Side side = new Side(tunnel, MAX_WIREGUARD_PACKET_SIZE);
        sides.add(side);
        return side;
    }

    /** Checks that a packet starts a handshake, is queued meanwhile, and arrives. */
    private static void shakeHands(Side from, Side to, byte[] packet) {
        byte[] initiation = from.writes(packet, WRITE_TO_NETWORK);
        assertEquals(INITIATION, initiation.length);
        byte[] response = to.reads(initiation, WRITE_TO_NETWORK);
        assertEquals(RESPONSE, response.length);
        byte[] keepalive = from.reads(response, WRITE_TO_NETWORK);
        assertEquals(KEEPALIVE, keepalive.length);
        byte[] waited = from.reads(NOTHING, WRITE_TO_NETWORK);
        from.reads(NOTHING, WIREGUARD_DONE);
        to.reads(keepalive, WIREGUARD_DONE);
        assertArrayEquals(packet, to.reads(waited, WRITE_TO_TUNNEL_IPV4));
    }

    private static void carry(Side from, Side to, byte[] packet, int kind) {
        byte[] datagram = from.writes(packet, WRITE_TO_NETWORK);
        assertArrayEquals(packet, to.reads(datagram, kind));
    }

    /** A tunnel with the buffers of one thread. */
    private static final class Side {
        final long tunnel;
        final ByteBuffer dst;
        final ByteBuffer op = ByteBuffer.allocateDirect(1);

        Side(long tunnel, int capacity) {
            this.tunnel = tunnel;
            dst = ByteBuffer.allocateDirect(capacity);
        }

        int write(byte[] packet, int length, int room) {
            op.put(0, (byte) 77);
            return BoringTunJNI.wireguard_write(tunnel, packet, length, dst, room, op);
        }

        int read(byte[] datagram, int length) {
            op.put(0, (byte) 77);
            return BoringTunJNI.wireguard_read(
                    tunnel, datagram, length, dst, MAX_WIREGUARD_PACKET_SIZE, op);
        }

        byte[] writes(byte[] packet, int kind) {
            return took(kind, write(packet, packet.length, MAX_WIREGUARD_PACKET_SIZE));
        }

        byte[] reads(byte[] datagram, int kind) {
            return took(kind, read(datagram, datagram.length));
        }

        /** Checks the operation, and returns the content of the destination. */
        byte[] took(int kind, int size) {
            assertEquals(kind, op.get(0), () -> "with " + size);
            byte[] given = new byte[kind == WIREGUARD_ERROR ? 0 : size];
            dst.duplicate().get(given);
            return given;
        }

        byte[] took(int kind, int length, int size) {
            assertEquals(length, size);
            return took(kind, size);
        }

        /** Checks that the call has failed, and returns the error. */
        int error(int size) {
            assertEquals(WIREGUARD_ERROR, op.get(0));
            return size;
        }
    }

    private static byte[] ipv4(int length) {
        byte[] packet = new byte[length];
        packet[0] = 0x45;
        packet[2] = (byte) (length >> 8);
        packet[3] = (byte) length;
        packet[12] = 10;
        packet[16] = 10;
        packet[length - 1] = 7;
        return packet;
    }

    private static byte[] ipv6(int length) {
        byte[] packet = new byte[length];
        packet[0] = 0x60;
        packet[4] = (byte) (length - 40 >> 8);
        packet[5] = (byte) (length - 40);
        packet[8] = (byte) 0xfd;
        packet[24] = (byte) 0xfd;
        packet[length - 1] = 7;
        return packet;
    }

    private static byte[] bytes(String hex) {
        byte[] bytes = new byte[hex.length() / 2];
        for (int i = 0; i < bytes.length; i++) {
            bytes[i] = (byte) Integer.parseInt(hex.substring(2 * i, 2 * i + 2), 16);
        }
        return bytes;
    }
}
